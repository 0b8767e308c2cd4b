"""The kinds of values that a configuration is made of.

A validator here raises ValueError with the whole message: value, what is allowed,
and the remedy. Where it came from is added by the caller.
"""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from warmroute.proxy.config.address import Address

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{u}b": 1000**n for n, u in enumerate("kmgt", 1)}
_UNITS |= {f"{u}ib": 1024**n for n, u in enumerate("kmgt", 1)}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)", re.ASCII)
_OFF = frozenset({"off", "false", "no"})
_WRITTEN = ("connection", "content-length", "host", "transfer-encoding")
_UNSTRIPPED = {name: f"warmroute writes {name} itself" for name in _WRITTEN} | {
    "content-type": "engines read the body by content-type",
    "authorization": "a backend's api_key takes the place of authorization",
}
_HEADER = re.compile(r"[!#$%&'+.^_`|~0-9a-z-]+\*?")


class Section(BaseModel):
    """Hold one mapping of the configuration; unknown keys are refused.

    A key that stands there without a value counts as left out. A string in place
    of the mapping is taken as its *short_form* key.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )
    short_form: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        if isinstance(data, str) and cls.short_form:
            data = {cls.short_form: data}
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        given = {k: v for k, v in data.items() if v is not None or k not in known}
        return cls.fill(given)

    @classmethod
    def fill(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Add the keys whose default depends on other keys."""
        return data


def _refuse_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


def _read_size(value: Any) -> Any:
    if not isinstance(value, str):
        return _refuse_boolean(value)
    match = _SIZE.fullmatch(value.strip())
    if not match or match[2].lower() not in _UNITS:
        raise ValueError(
            f"'{value}' is no size (allowed: bytes, or a number with "
            "kB, MB, GB, TB, KiB, MiB, GiB or TiB)"
        )
    return round(float(match[1]) * _UNITS[match[2].lower()])


def _read_address(value: Any) -> Any:
    if isinstance(value, Address):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError("expected an address (allowed: host:port, :port, [ipv6]:port)")
    return Address.parse(value)


def _read_optional_address(value: Any) -> Any:
    return None if is_off(value) else _read_address(value)


def is_off(value: Any) -> bool:
    """Whether a value says off: YAML's false, or the word from a variable."""
    return value is False or (isinstance(value, str) and value.lower() in _OFF)


def off_word(value: Any) -> Any:
    """Turn YAML's false, which a bare off is read as, back into the word."""
    return "off" if is_off(value) else value


def off_none(value: Any) -> Any:
    """Turn off into the absence of a section."""
    return None if is_off(value) else value


def _read_secret(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value
    if not isinstance(value, str):
        raise ValueError("expected a string; put it in quotes")
    text = value.strip()
    if not (text.isascii() and text.isprintable()):
        raise ValueError("the secret has characters that no header can carry")
    return SecretStr(text) if text else None


def _resolve_path(path: Path, info: ValidationInfo) -> Path:
    return resolve(path, (info.context or {}).get("directory", Path()))


def resolve(path: str | Path, directory: Path) -> Path:
    """Return *path*, taken from *directory* if relative, with ``~`` expanded.

    Raises:
        ValueError: The home directory is unknown.
    """
    try:
        return directory / Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"'{path}' cannot be resolved: {error}") from error


def _check_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"'{text}' is no URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials in a URL are not taken; use api_key")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(_explain_scheme(text))
    if port == 0 or not text.isascii() or any(c.isspace() for c in text):
        raise ValueError(f"'{text}' has no valid host and port (allowed: 1 to 65535)")
    if parts.query or parts.fragment:
        raise ValueError(f"'{text}' has a query or fragment; leave it out")
    return parts.geturl().rstrip("/")


def _explain_scheme(text: str) -> str:
    message = f"'{text}' is no URL (allowed: http://host:port, https://host:port)"
    if re.fullmatch(r"[\w.\-\[\]:]+(/\S*)?", text) and "://" not in text:
        message += f"; did you mean 'http://{text}'?"
    return message


def _check_backend_url(text: str) -> str:
    url = _check_url(text)
    if url.endswith("/v1"):
        raise ValueError(
            f"'{text}' ends in /v1, which the requests bring themselves; "
            f"did you mean '{url.removesuffix('/v1')}'?"
        )
    return url


def _check_header(text: str) -> str:
    if not _HEADER.fullmatch(text.lower()):
        raise ValueError(
            f"'{text}' is no header name (allowed: a name, or its start with a *)"
        )
    pattern = text.lower()
    for name, reason in _UNSTRIPPED.items():
        start = pattern.removesuffix("*")
        if name == pattern or (start != pattern and name.startswith(start)):
            raise ValueError(f"'{text}' cannot be stripped: {reason}")
    return pattern


def _check_name(text: str) -> str:
    if not text.isprintable() or " " in text or not 0 < len(text) <= 200:
        raise ValueError(
            f"'{text}' is no name (allowed: 1 to 200 characters without spaces)"
        )
    return text


Number = BeforeValidator(_refuse_boolean)
"""Keeps true and false from passing as 1 and 0."""

Count = Annotated[int, Field(ge=1, le=1_000_000), Number]
Seconds = Annotated[float, Field(gt=0, le=86_400), Number]
SecondsOrZero = Annotated[float, Field(ge=0, le=86_400), Number]
ByteCount = Annotated[
    int,
    BeforeValidator(_read_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^[0-9.]+ ?([kKmMgGtT]i?)?[bB]?$"},
            ]
        }
    ),
]
_ADDRESS_SCHEMA = {"type": ["string", "integer"], "minimum": 0, "maximum": 65535}
ListenAddress = Annotated[
    Address, BeforeValidator(_read_address), WithJsonSchema(_ADDRESS_SCHEMA)
]
OptionalAddress = Annotated[
    Address | None,
    BeforeValidator(_read_optional_address),
    WithJsonSchema({"anyOf": [_ADDRESS_SCHEMA, {"const": False}], "examples": ["off"]}),
]
Secret = Annotated[SecretStr | None, BeforeValidator(_read_secret)]
FilePath = Annotated[Path, AfterValidator(_resolve_path)]
Url = Annotated[str, AfterValidator(_check_url)]
BackendUrl = Annotated[str, AfterValidator(_check_backend_url)]
HeaderPattern = Annotated[str, AfterValidator(_check_header)]
Name = Annotated[str, AfterValidator(_check_name)]
