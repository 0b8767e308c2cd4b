"""YAML files, read safely into a draft that knows the line of each value.

The composed nodes are walked here instead of handing them to PyYAML's constructor:
that keeps the marks, finds duplicate keys, bounds what aliases expand to, and leaves
out the surprises of YAML 1.1 (``1:30`` as a base 60 number, dates, octal ``010``).
Bare on, off, yes and no stay booleans, as people's files rely on it.
"""

import re
from pathlib import Path as FilePath

import yaml

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config.draft import Draft, Origin, Path, shown

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_VALUES = 100_000
MAX_DEPTH = 32

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]{0,40})")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F_]{1,32}")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)")

_TAG = "tag:yaml.org,2002:"
_STRING = _TAG + "str"
_MERGE = _TAG + "merge"
_PLAIN = frozenset(
    _TAG + name
    for name in ("null", "bool", "int", "float", "timestamp", "merge", "value")
)
_CONTAINERS = frozenset({_TAG + "map", _TAG + "seq"})
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(path: FilePath) -> Draft:
    """Read a YAML file into a draft; duplicate keys and the like are reported in it.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, or is not YAML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read: {reason.lower()}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_FILE_BYTES} bytes")
    return parse_document(str(path), _decode(path, data))


def parse_document(name: str, text: str, *, has_lines: bool = True) -> Draft:
    """Parse YAML text into a draft whose origins carry *name* and the line.

    Args:
        has_lines: False for a one-line text, such as a variable's value.

    Raises:
        ConfigError: The text is not YAML, or expands to too much.
    """
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.reader.ReaderError as error:
        raise ConfigError(_describe_character(name, text)) from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_describe_syntax(name, text, error, has_lines)) from error
    except (RecursionError, UnicodeError) as error:
        raise ConfigError(f"{name}: cannot be read as YAML: {error}") from error
    draft = Draft(Origin(name))
    if node is not None:
        draft.tree = _Construction(draft, has_lines).value(node, ())
    return draft


def resolve_plain(text: str) -> object:
    """Turn an unquoted scalar into null, a boolean, a number, or the text itself."""
    if text in NULLS:
        return None
    word = text.lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _HEXADECIMAL.fullmatch(text):
        return int(text.replace("_", "")[2:] or "0", 16)
    if _NOT_FINITE.fullmatch(word):
        return float(word.replace(".", ""))
    return float(text) if _FLOAT.fullmatch(text) else text


class _Construction:
    """Build plain values from nodes, once, for one draft."""

    __slots__ = ("_draft", "_has_lines", "_num_values")

    def __init__(self, draft: Draft, has_lines: bool) -> None:
        self._draft = draft
        self._has_lines = has_lines
        self._num_values = 0

    def value(self, node: yaml.Node, path: Path, depth: int = 0) -> object:
        """Return the plain value of *node* and note the origins below *path*."""
        self._bound(node, depth)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.MappingNode) and node.tag in _CONTAINERS:
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag in _CONTAINERS:
            return [
                self._place((*path, index), item, item, depth)
                for index, item in enumerate(node.value)
            ]
        return self._refuse_tag(node, path)

    def _bound(self, node: yaml.Node, depth: int) -> None:
        self._num_values += 1
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"{self._origin(node)}: nested deeper than {MAX_DEPTH} levels; "
                "does an alias contain itself?"
            )
        if self._num_values > MAX_VALUES:
            raise ConfigError(
                f"{self._origin(node)}: expands to more than {MAX_VALUES} values; "
                "use fewer aliases"
            )

    def _place(
        self, path: Path, mark: yaml.Node, node: yaml.Node, depth: int
    ) -> object:
        self._draft.origins[path] = self._origin(mark)
        return self.value(node, path, depth + 1)

    def _origin(self, node: yaml.Node) -> Origin:
        line = node.start_mark.line + 1 if self._has_lines else None
        return Origin(self._draft.root.source, line)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        if node.tag == _STRING:
            return node.value
        if node.tag in _PLAIN:
            return resolve_plain(node.value)
        return self._refuse_tag(node, path)

    def _refuse_tag(self, node: yaml.Node, path: Path) -> object:
        tag = node.tag.replace(_TAG, "!!")
        message = f"tag {shown(tag)} is not supported; write a plain value"
        self._draft.report(path, message, self._origin(node))
        self._draft.broken.add(path)
        return None

    def _mapping(
        self, node: yaml.MappingNode, path: Path, depth: int
    ) -> dict[str, object]:
        merged: dict[str, object] = {}
        own: dict[str, object] = {}
        seen: dict[str, yaml.Node] = {}
        for key_node, value_node in sorted(node.value, key=_is_own):
            key = self._key(key_node, path, seen)
            if key is None:
                continue
            if key_node.tag == _MERGE:
                merged = self._merged(value_node, path, depth)
            else:
                own[key] = self._place((*path, key), key_node, value_node, depth)
        return merged | own

    def _key(
        self, node: yaml.Node, path: Path, seen: dict[str, yaml.Node]
    ) -> str | None:
        origin = self._origin(node)
        if not isinstance(node, yaml.ScalarNode):
            self._draft.report(path, "a key must be a string", origin)
            return None
        key = node.value if node.tag == _MERGE else self._scalar(node, path)
        if not isinstance(key, str):
            message = f"key {shown(node.value)} must be a string; put it in quotes"
            self._draft.report(path, message, origin)
            return None
        if key in seen:
            first = self._origin(seen[key]).line
            message = f"duplicate key {shown(key)}, first given on line {first}"
            self._draft.report((*path, key), message, origin)
            return None
        seen[key] = node
        return key

    def _merged(self, node: yaml.Node, path: Path, depth: int) -> dict[str, object]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, object] = {}
        for source in reversed(sources):
            self._bound(source, depth + 1)
            if isinstance(source, yaml.MappingNode):
                result |= self._mapping(source, path, depth + 1)
            else:
                message = "'<<' must name a mapping, or a list of mappings"
                self._draft.report(path, message, self._origin(source))
        return result


def _is_own(pair: tuple[yaml.Node, yaml.Node]) -> bool:
    return bool(pair[0].tag != _MERGE)


def _decode(path: FilePath, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise ConfigError(
            f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
        ) from error


def _describe_character(name: str, text: str) -> str:
    for number, line in enumerate(text.split("\n"), 1):
        for column, character in enumerate(line, 1):
            if not yaml.reader.Reader.NON_PRINTABLE.match(character):
                continue
            code = f"U+{ord(character):04X}"
            return f"{name}:{number}:{column}: character {code} is not allowed in YAML"
    return f"{name}: has a character that is not allowed in YAML"


def _describe_syntax(
    name: str, text: str, error: yaml.MarkedYAMLError, has_lines: bool
) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark and has_lines else name
    problem = error.problem or "not YAML"
    if error.context and error.context_mark and has_lines:
        start = error.context_mark.line + 1
        problem = f"{error.context} from line {start}, {problem}"
    # YAML breaks lines at more characters than a newline, so splitlines it is.
    lines = text.splitlines()
    if mark and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]:
        problem += "; indent with spaces, not with tabs"
    return f"{place}: {problem}"
