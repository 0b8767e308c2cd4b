"""Checks that look at more than one value, at plugins, or at files.

They work on the plain values of a draft, so that they report beside the problems of
single values and not only once those are mended.
"""

import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from urllib.parse import urlsplit

from warmroute.adapters.caller import is_loopback
from warmroute.adapters.registry import adapters
from warmroute.policies.errors import WarmrouteError
from warmroute.policies.registry import policies
from warmroute.policies.routing.base import options
from warmroute.proxy.config.address import Address
from warmroute.proxy.config.backend import name_of_url
from warmroute.proxy.config.draft import Draft, Path, shown, unknown
from warmroute.proxy.config.fields import is_off, resolve
from warmroute.proxy.config.model import DEFAULT_ADMIN, DEFAULT_LISTEN
from warmroute.proxy.config.policy import (
    DEFAULT_POLICY,
    NamedPolicy,
    PolicyConfig,
    ShadowConfig,
)
from warmroute.proxy.config.tokenizers import WORDS, read_tokenizer

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104


def engine_names() -> list[str]:
    """List what ``backends[].engine`` may be."""
    return sorted({"auto", *adapters.names()})


def check_all(draft: Draft, directory: FilePath) -> None:
    """Report what single values do not show; relative paths start at *directory*."""
    _check_backends(draft)
    _check_models(draft, directory)
    _check_policy(draft)
    _check_listeners(draft)
    _check_loops(draft)
    _check_tls(draft, directory)
    _check_records(draft, directory)


def _check_backends(draft: Draft) -> None:
    engines = engine_names()
    names: dict[str, Path] = {}
    for path, backend in _items(draft, "backends"):
        name = backend.get("name")
        url = backend.get("url")
        if isinstance(url, str):
            _check_plain(draft, path, backend, url)
            if name is None:
                name = name_of_url(url)
        _check_unique(draft, (*path, "name"), name, names)
        engine = backend.get("engine")
        key = (*path, "engine")
        is_named = isinstance(engine, str) and not draft.is_broken(key)
        if is_named and engine not in engines:
            draft.report(key, unknown("engine", str(engine), engines))


def _check_plain(
    draft: Draft, path: Path, backend: Mapping[str, object], url: str
) -> None:
    """Refuse a `tls` that says more than the defaults, where there is none."""
    tls = backend.get("tls")
    asks = isinstance(tls, dict) and any(
        one not in (None, True) for one in tls.values()
    )
    if asks and url.lower().startswith("http:"):
        message = f"{shown(url)} is plain HTTP, where tls does nothing; "
        draft.report((*path, "tls"), message + "write https, or leave tls out")


def _check_models(draft: Draft, directory: FilePath) -> None:
    names: dict[str, Path] = {}
    for path, model in _items(draft, "models"):
        _check_unique(draft, (*path, "name"), model.get("name"), names)
        _check_tokenizer(draft, (*path, "tokenizer"), directory)


def _check_tokenizer(draft: Draft, path: Path, directory: FilePath) -> None:
    named = draft.value_at(path)
    if not isinstance(named, str) or not named or draft.is_broken(path):
        return
    if named in WORDS:
        return
    try:
        read_tokenizer(resolve(named, directory))
    except (ValueError, WarmrouteError) as error:
        draft.report(path, str(error))


def _check_unique(
    draft: Draft, path: Path, name: object, names: dict[str, Path]
) -> None:
    if not isinstance(name, str) or draft.is_broken(path):
        return
    first = names.setdefault(name, path)
    if first != path:
        place = draft.origin_of(first)
        message = f"duplicate name '{name}', first given at {place}; names must differ"
        draft.report(path, message)


def _check_policy(draft: Draft) -> None:
    _check_named(draft, ("policy",), PolicyConfig)
    shadow = draft.value_at(("policy", "shadow"))
    if shadow is not None and not is_off(shadow):
        _check_named(draft, ("policy", "shadow"), ShadowConfig)


def _check_named(draft: Draft, path: Path, section: type[NamedPolicy]) -> None:
    """Check a policy's name and options at *path*, but not the section's own keys."""
    policy = draft.value_at(path)
    given = {"name": policy} if isinstance(policy, str) else policy
    if not isinstance(given, dict | None):
        return
    own = section.own_keys
    values = {key: value for key, value in (given or {}).items() if key not in own}
    name = (given or {}).get("name") or DEFAULT_POLICY
    if not isinstance(name, str) or draft.is_broken((*path, "name")):
        return
    if name not in policies.names():
        fault = unknown("policy", name, policies.names())
        draft.report((*path, "name"), fault)
        return
    _check_options(draft, path, name, values)


def _check_options(
    draft: Draft, place: Path, name: str, values: Mapping[str, object]
) -> None:
    try:
        known = {option.name: option for option in options(policies.get(name))}
    except WarmrouteError as error:
        draft.report((*place, "name"), str(error))
        return
    for key, value in values.items():
        path = (*place, key)
        if key not in known:
            draft.report(path, unknown("option", key, known))
            continue
        if value is not None and not draft.is_broken(path):
            fault = known[key].check(value)
            if fault:
                draft.report(path, fault)


def _check_listeners(draft: Draft) -> None:
    listen = _address(draft, "listen", DEFAULT_LISTEN)
    admin = _address(draft, "admin", DEFAULT_ADMIN)
    if admin is None:
        return
    if not (admin.is_loopback or _has_admin_token(draft)):
        draft.report(
            ("admin",),
            f"{admin} can be reached from other machines and has no admin_token; "
            "set WARMROUTE_ADMIN_TOKEN, or listen on 127.0.0.1, or say `admin: off`",
        )
    if listen and admin.port and listen.port == admin.port:
        hosts = {listen.host, admin.host}
        if len(hosts) == 1 or _WILDCARDS & hosts:
            message = f"{admin} is taken by listen; choose another port"
            draft.report(("admin",), message)


def _check_loops(draft: Draft) -> None:
    """Report backends whose URL names an address that this process listens on."""
    own = {
        "listen": _address(draft, "listen", DEFAULT_LISTEN),
        "admin": _address(draft, "admin", DEFAULT_ADMIN),
    }
    for path, backend in _items(draft, "backends"):
        place, url = (*path, "url"), backend.get("url")
        if not isinstance(url, str) or draft.is_broken(place):
            continue
        for key, address in own.items():
            if address is not None and _leads_to(url, address):
                message = f"'{url}' is this warmroute's own address ({key}: {address})"
                draft.report(place, f"{message}; give the address of an engine")


def _leads_to(url: str, address: Address) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return False  # reported as no URL
    if port != address.port or not host:
        return False
    if host in _WILDCARDS:
        host = "localhost"
    own = address.host.lower()
    if own in _WILDCARDS:
        return is_loopback(host)
    # 127.0.0.2 may be somebody else's beside our 127.0.0.1, localhost may not.
    is_named = "localhost" in (host, own)
    return host == own or (is_named and is_loopback(host) and is_loopback(own))


def _has_admin_token(draft: Draft) -> bool:
    token = draft.value_at(("admin_token",))
    given = token is not None and not (isinstance(token, str) and not token.strip())
    return given or draft.is_broken(("admin_token",))


def _address(draft: Draft, key: str, default: Address) -> Address | None:
    value = draft.value_at((key,))
    if value is None:
        return default
    if is_off(value):
        return None
    try:
        return Address.parse(str(value))
    except ValueError:
        return None


def _check_tls(draft: Draft, directory: FilePath) -> None:
    for backend, _ in _items(draft, "backends"):
        _check_authorities(draft, (*backend, "tls", "ca"), directory)
    certificate = _readable(draft, ("tls", "certificate"), directory)
    key = _readable(draft, ("tls", "key"), directory)
    if not (certificate and key):
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        message = f"certificate and key do not serve: {reason}; are they one pair of "
        draft.report(("tls",), message + "PEM files, the key without a passphrase?")


def _check_authorities(draft: Draft, path: Path, directory: FilePath) -> None:
    file = _readable(draft, path, directory)
    if file is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        draft.report(path, f"'{file}' holds no PEM certificates: {reason}")


def _check_records(draft: Draft, directory: FilePath) -> None:
    path: Path = ("records",)
    text = draft.value_at(path)
    if isinstance(text, dict):
        path = ("records", "path")
        text = draft.value_at(path)
    elif is_off(text):
        return
    if not isinstance(text, str) or draft.is_broken(path):
        return
    try:
        file = resolve(text, directory)
    except ValueError as error:
        draft.report(path, str(error))
        return
    if file.is_dir():
        draft.report(path, f"'{text}' is a folder; name a file in it")
    elif not file.parent.is_dir():
        message = f"'{text}' cannot be written: no folder '{file.parent}'"
        draft.report(path, message)
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        draft.report(path, f"'{text}' cannot be written: permission denied")


def _readable(draft: Draft, path: Path, directory: FilePath) -> FilePath | None:
    text = draft.value_at(path)
    if not isinstance(text, str) or draft.is_broken(path):
        return None
    try:
        file = resolve(text, directory)
        with file.open("rb"):
            return file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        draft.report(path, f"'{text}' cannot be read: {reason.lower()}")
        return None


def _items(draft: Draft, key: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
    items = draft.value_at((key,))
    short_form = {"backends": "url", "models": "name"}[key]
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, dict):
            yield (key, index), item
        elif isinstance(item, str):
            yield (key, index), {short_form: item}
