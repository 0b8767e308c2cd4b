"""Validation of a draft against a model, in the words of a person's file."""

import re
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from warmroute.proxy.config.backend import KV_EVENTS_FORMS
from warmroute.proxy.config.draft import MAX_SHOWN, Draft, Path, shown, unknown
from warmroute.proxy.config.keys import Key

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "int": "an integer",
    "float": "a number",
    "string": "a string",
    "bool": "true or false",
    "list": "a list",
    "path": "a path",
    "finite": "a finite number",
    "model": "a mapping",
    "dict": "a mapping",
}
_MISTYPED = ("_type", "_parsing", "_parsing_size", "_from_float", "_number")
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def validate(draft: Draft, model: type[M], context: Mapping[str, object]) -> M | None:
    """Build *model* from the draft, or report everything that it refuses."""
    try:
        return model.model_validate(draft.tree, context=dict(context))
    except ValidationError as error:
        root = Key(model)
        for detail in error.errors(include_url=False):
            path = _path(detail["loc"], root)
            if not draft.is_broken(path):
                draft.report(path, _describe(detail, path, root))
                draft.broken.add(path)
    return None


def _path(location: Path, root: Key) -> Path:
    key: Key | None = root
    path: Path = ()
    for step in location:
        # Where a word or a mapping may stand, pydantic says which form it took.
        if key and key.words and step in KV_EVENTS_FORMS:
            continue
        key = key and key.child(step)
        path = (*path, step)
    return path


def _describe(detail: ErrorDetails, path: Path, root: Key) -> str:
    kind, value = detail["type"], detail["input"]
    key = root.at(path)
    context = detail.get("ctx", {})
    if kind == "missing":
        return f"missing key {shown(path[-1])}{_purpose(key)}"
    if kind == "extra_forbidden":
        return _describe_unknown_key(path, root)
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", detail["msg"]))
    got = "" if key and key.is_secret else f", got {shown(value)}"
    if kind == "literal_error" and key:
        return _describe_word(value, key)
    if kind == "too_short":
        return f"must not be empty{_purpose(key)}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        allowed = (key.limits if key else "") or f"{words} {context[bound]}"
        return f"{shown(value)} is out of range (allowed: {allowed})"
    expected = _EXPECTED.get(kind.split("_")[0])
    if expected and kind.endswith(_MISTYPED):
        if expected == "a number" and str(path[-1]).endswith("_s"):
            expected = "a number of seconds"
        return f"expected {expected}{got}{_remedy(kind, value, path, key)}"
    message = re.sub(r"^Value error, ", "", detail["msg"])
    return f"{message[:1].lower()}{message[1:]}{got}"


def _remedy(kind: str, value: object, path: Path, key: Key | None) -> str:
    if not isinstance(value, str | int | float):
        return ""
    if kind == "string_type":
        return "; put it in quotes"
    names = list(key.children()) if key else []
    if kind == "model_type" and len(names) == 1:
        text = value if isinstance(value, str) else shown(value)
        return f"; did you mean `{path[-1]}: {{{names[0]}: {text[:MAX_SHOWN]}}}`?"
    return ""


def _purpose(key: Key | None) -> str:
    description = key.field.description if key and key.field else None
    return f" ({description.rstrip('.')})" if description else ""


def _describe_unknown_key(path: Path, root: Key) -> str:
    section, name = root.at(path[:-1]), str(path[-1])
    message = unknown("key", name, section.children() if section else ())
    homes = [f"`{home}`" if home else "the top level" for home in root.homes(name)]
    if homes and "did you mean" not in message:
        message += f"; it belongs under {' or '.join(homes)}"
    return message


def _describe_word(value: object, key: Key) -> str:
    if isinstance(value, str):
        return unknown("value", value, key.words)
    message = f"expected one of {', '.join(key.words)}, got {shown(value)}"
    if isinstance(value, bool):
        message += "; YAML reads a bare on, off, yes or no as true or false"
    return message
