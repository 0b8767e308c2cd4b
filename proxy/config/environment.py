"""What the environment and flags add to a draft: overrides and interpolation."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config.document import NULLS, parse_document, resolve_plain
from warmroute.proxy.config.draft import Draft, Origin, Path, Problem, did_you_mean
from warmroute.proxy.config.keys import Key

PREFIX = "WARMROUTE_"

# Kubernetes sets these for a Service that is named warmroute or warmroute-*.
_SERVICE_LINK = re.compile(
    r"WARMROUTE(_[A-Z0-9_]+?)?_"
    r"(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)"
)
# Read by others of ours: the cache, the engine, the build. No keys of the file.
_OURS = frozenset(
    f"WARMROUTE_{name}"
    for name in ("CACHE", "COMPILED", "ENGINE_TOKEN", "OFFLINE", "PURE")
)
_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|(?P<bad>\$\{)"
)


def override(draft: Draft, root: Key, environ: Mapping[str, str]) -> None:
    """Put every ``WARMROUTE_A__B`` variable into the draft, or report it.

    A variable that the file names in a ``${...}`` is the file's own affair, unless it
    names a key; those that Kubernetes sets for a Service are passed over.
    """
    referenced = set(_references(draft.tree))
    for name in sorted(environ, key=_natural):
        if not name.startswith(PREFIX) or name in _OURS:
            continue
        if _SERVICE_LINK.fullmatch(name):
            continue
        path = _path(root, name)
        if path is not None:
            put(draft, root, path, environ[name], Origin(name))
        elif name not in referenced:
            draft.problems.append(_unknown_variable(root, name))


def put(draft: Draft, root: Key, path: Path, text: str, origin: Origin) -> None:
    """Set the value at *path* as a variable or flag gives it, verbatim."""
    key = root.at(path)
    if key is None or _is_past_end(draft, path, origin):
        return
    draft.tree = _with(draft.tree, root, path, _read(draft, key, path, text, origin))
    draft.origins[path] = origin
    draft.settled.add(path)


def interpolate(draft: Draft, root: Key, environ: Mapping[str, str]) -> None:
    """Replace ``${VAR}`` and ``${VAR:-default}`` in every string of the draft.

    ``$${`` stands for a literal ``${``. As in a shell, the default also takes the
    place of an empty variable. What a variable or flag gave is left as it is.
    """
    draft.tree = _Interpolation(draft, root, environ).value(draft.tree, ())


def refuse_references(draft: Draft) -> None:
    """Report every ``${`` of the draft, which comes from outside this machine."""
    for path, text in _strings(draft.tree, ()):
        if "${" in text:
            message = "'${' stands for a variable in files alone; give the value itself"
            draft.report(path, message)
            draft.broken.add(path)


class _Interpolation:
    __slots__ = ("_draft", "_environ", "_root")

    def __init__(self, draft: Draft, root: Key, environ: Mapping[str, str]) -> None:
        self._draft = draft
        self._root = root
        self._environ = environ

    def value(self, value: object, path: Path) -> object:
        if path in self._draft.settled:
            return value
        match value:
            case dict():
                return {k: self.value(v, (*path, k)) for k, v in value.items()}
            case list():
                return [self.value(v, (*path, i)) for i, v in enumerate(value)]
            case str() if "${" in value:
                return self._text(value, path)
        return value

    def _text(self, text: str, path: Path) -> object:
        messages: list[str] = []

        def replace(match: re.Match[str]) -> str:
            return self._replacement(match, messages)

        result = _REFERENCE.sub(replace, text)
        for message in messages:
            self._draft.report(path, message)
            self._draft.broken.add(path)
        key = self._root.at(path)
        return resolve_plain(result) if key and key.annotation is Any else result

    def _replacement(self, match: re.Match[str], messages: list[str]) -> str:
        name, default = match["name"], match["default"]
        if match["bad"]:
            messages.append(
                "'${' begins no reference (allowed: ${VAR}, ${VAR:-default}, "
                "and $${ for a literal ${)"
            )
        elif name is None:
            return "${"
        elif default is not None:
            return self._environ.get(name) or default[2:]
        elif name not in self._environ:
            messages.append(
                f"environment variable {name} is not set; "
                f"set it, or write ${{{name}:-default}}"
            )
        return self._environ.get(name or "", match[0])


def _references(value: object) -> Iterator[str]:
    for _, text in _strings(value, ()):
        yield from (match["name"] or "" for match in _REFERENCE.finditer(text))


def _strings(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    match value:
        case dict():
            for key, child in value.items():
                yield from _strings(child, (*path, key))
        case list():
            for index, child in enumerate(value):
                yield from _strings(child, (*path, index))
        case str():
            yield path, value


def _natural(name: str) -> list[tuple[int, str]]:
    return [(len(part) if part.isdecimal() else 0, part) for part in name.split("__")]


def _path(root: Key, name: str) -> Path | None:
    key: Key | None = root
    path: Path = ()
    for segment in name.removeprefix(PREFIX).lower().split("__"):
        is_index = key is not None and key.item and re.fullmatch("[0-9]{1,6}", segment)
        step = int(segment) if is_index else segment
        key = key and key.child(step)
        path = (*path, step)
    return path if key else None


def variable(path: Path) -> str:
    """Return the environment variable that overrides the key at *path*."""
    return PREFIX + "__".join(str(step).upper() for step in path)


def _unknown_variable(root: Key, name: str) -> Problem:
    indices = re.findall(r"__(\d+)(?=__|$)", name)
    known = [variable(path) for path, _ in root.walk()]
    if indices:
        known = [variable.replace("__0", f"__{indices[0]}", 1) for variable in known]
    message = "the variable names no key of the configuration"
    hint = did_you_mean(name, known, PREFIX) or "; see `warmroute schema --markdown`"
    return Problem(Origin(name), (), message + hint)


def _is_past_end(draft: Draft, path: Path, origin: Origin) -> bool:
    for length, step in enumerate(path):
        items = draft.value_at(path[:length])
        num_items = len(items) if isinstance(items, list) else 0
        if isinstance(step, int) and step > num_items:
            message = f"index {step} is past the end; the next free one is {num_items}"
            draft.report(path, message, origin)
            return True
    return False


def _read(draft: Draft, key: Key, path: Path, text: str, origin: Origin) -> object:
    stripped = text.strip()
    if key.is_secret:
        return text
    if stripped in NULLS:
        return None
    is_container = (key.item or key.section) and stripped[0] in "[{"
    if is_container or stripped[0] in "'\"":
        return _read_yaml(draft, path, stripped, origin)
    return resolve_plain(stripped) if key.annotation is Any else stripped


def _read_yaml(draft: Draft, path: Path, text: str, origin: Origin) -> object:
    try:
        read = parse_document(origin.source, text, has_lines=False)
    except ConfigError as error:
        message = str(error).removeprefix(f"{origin}: ")
        draft.report(path, message, origin)
        draft.broken.add(path)
        return None
    for problem in read.problems:
        draft.report((*path, *problem.path), problem.message, origin)
    draft.broken |= {(*path, *broken) for broken in read.broken}
    return read.tree


def _with(tree: object, key: Key | None, path: Path, value: object) -> object:
    if not path:
        return value
    step, rest = path[0], path[1:]
    below = key and key.child(step)
    if isinstance(step, int):
        items = [*tree] if isinstance(tree, list) else []
        items[step:] = [
            _with(items[step] if step < len(items) else None, below, rest, value),
            *items[step + 1 :],
        ]
        return items
    mapping = _expanded(tree, key)
    return mapping | {step: _with(mapping.get(step), below, rest, value)}


def _expanded(tree: object, key: Key | None) -> dict[str, object]:
    if isinstance(tree, dict):
        return tree
    short_form = getattr(key.section, "short_form", None) if key else None
    return {short_form: tree} if short_form and isinstance(tree, str) else {}
