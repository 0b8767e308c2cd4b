"""Bodies of requests: bounded, decoded once, and checked field by field."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from warmroute.adapters.embedded.server.errors import BadField
from warmroute.policies.errors import ClientError

MAX_BODY_BYTES = 16 * 1024 * 1024

_T = TypeVar("_T")
_PLACE = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`$")


async def read_object(request: web.Request) -> dict[str, Any]:
    """Read the body, one JSON object; its null fields are left out.

    Raises:
        ClientError: The body is too large, no JSON, or no object.
    """
    raw = await request.read()
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error) if raw else "it is empty"
        raise ClientError(
            400, "json_invalid", f"the body is not valid JSON: {reason}"
        ) from error
    except RecursionError:
        raise ClientError(
            400, "json_invalid", "the body is nested too deep; send a flatter one"
        ) from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ClientError(
            400, "json_invalid", f"the body must be a JSON object, not {kind}"
        )
    return {name: field for name, field in value.items() if field is not None}


def convert_fields(fields: Mapping[str, Any], kind: type[_T], place: str = "") -> _T:
    """Return *fields* as a *kind*.

    Args:
        fields: What was decoded, with fields of *kind* only.
        kind: A struct or dataclass.
        place: Field of the body that holds *fields*, if it is not the body.

    Raises:
        BadField: A field is missing, has another type, or is out of range.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _explain(error, fields, place) from error
    except RecursionError:
        raise ClientError(
            400, "json_invalid", "the body is nested too deep; send a flatter one"
        ) from None


def _explain(
    error: msgspec.ValidationError, fields: Mapping[str, Any], place: str
) -> BadField:
    text = str(error)
    found = _PLACE.match(text)
    path, what = (found["path"], found["what"]) if found else ("", text)
    missing = _MISSING.search(what)
    if missing:
        names = [name for name in (place, path, missing["name"]) if name]
        return BadField(
            ".".join(names), "this field is required", "missing_required_parameter"
        )
    what = what[:1].lower() + what[1:]
    value = fields.get(path)
    # Numbers are shown, texts are not: those may be prompts.
    if isinstance(value, int | float) and "got" not in what:
        what = f"{what}, got {value!r}"
    names = [name for name in (place, path) if name]
    return BadField(".".join(names) or "body", what)
