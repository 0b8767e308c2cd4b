"""Whether a chat template takes contents as parts or as plain strings.

vLLM decides it by the template's syntax: a template that loops over a message's
content takes parts, all others take strings. This follows its rules, oddities
included (its ``renderers/hf.py``, release 0.32), since the prompt depends on them.
"""

from collections.abc import Iterator

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

from warmroute.adapters.tokens.chat_template import make_environment


class _OddTarget(Exception):
    """A loop or an assignment has no plain name as its target."""


def takes_parts(source: str) -> bool:
    """Tell whether the template *source* takes contents as lists of parts."""
    try:
        root = make_environment().parse(source)
        return any(_content_loops(root))
    except (_OddTarget, TemplateSyntaxError):
        return False


def _content_loops(root: nodes.Template) -> Iterator[bool]:
    messages = list(_message_names(root))
    in_macros: set[int] = set()
    by_macro: dict[int, set[str]] = {}
    for macro in root.find_all(nodes.Macro):
        parameters = _content_parameters(root, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if parameters:
                by_macro[id(loop)] = parameters
    for loop in root.find_all(nodes.For):
        walked = loop.iter
        is_name = isinstance(walked, nodes.Name)
        name = walked.name if isinstance(walked, nodes.Name) else ""
        if (
            any(_reads(walked, message, "content") for message in messages)
            or (is_name and name in by_macro.get(id(loop), ()))
            or (is_name and name == "content" and id(loop) not in in_macros)
        ):
            _plain(loop.target)
            yield True


def _message_names(root: nodes.Template) -> Iterator[str]:
    """Name what loops over the messages put each one into."""
    lists = list(_aliases(root, "messages"))
    for loop in root.find_all(nodes.For):
        if any(_reads(loop.iter, name) for name in lists):
            yield _plain(loop.target)


def _aliases(root: nodes.Template, first: str) -> Iterator[str]:
    """Name the variables that hold *first*, a part of it, or an alias of it."""
    yield first
    todo = [first]
    for name in todo:
        for assignment in root.find_all(nodes.Assign):
            if _reads(assignment.node, name):
                alias = _plain(assignment.target)
                yield alias
                # Two variables may be assigned to each other.
                if alias not in todo:
                    todo.append(alias)


def _content_parameters(
    root: nodes.Template, macro: nodes.Macro, messages: list[str]
) -> set[str]:
    """Name the parameters of *macro* that are given a message's content."""
    names = [argument.name for argument in macro.args]
    found = set()
    for call in root.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given = [*zip(names, call.args, strict=False)]
        given += [(one.key, one.value) for one in call.kwargs if one.key in names]
        found |= {
            name
            for name, value in given
            if any(_reads(value, message, "content") for message in messages)
        }
    return found


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Tell whether *node* is a variable, or its *key*, filtered or sliced at most."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return isinstance(node, nodes.Name) and (node.ctx, node.name) == ("load", name)
    if isinstance(node, nodes.Getitem):
        is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
    elif isinstance(node, nodes.Getattr):
        is_key = node.attr == key
    else:
        return False
    owner = node.node
    return (
        is_key
        and isinstance(owner, nodes.Name)
        and (owner.ctx, owner.name) == ("load", name)
    )


def _plain(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _OddTarget
    return target.name
