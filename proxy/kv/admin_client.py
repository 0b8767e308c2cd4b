"""Asking the admin port of a running proxy."""

import json
import os
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from warmroute.policies.errors import ConfigError, WarmrouteError
from warmroute.proxy.console.admin_url import admin_base

DEFAULT_ADMIN = "http://127.0.0.1:9090"
ADDRESS_VARIABLE = "WARMROUTE_ADMIN"
TOKEN_VARIABLE = "WARMROUTE_ADMIN_TOKEN"  # noqa: S105 - a name, no secret
_TIMEOUT_S = 60.0
_MAX_ANSWER_BYTES = 256 * 1024 * 1024


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: the token goes nowhere else."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Take a redirect for the error that it is here."""


class AdminClient:
    """Ask the admin port, with the token that the environment holds.

    Args:
        url: Address of the admin port, with or without ``http://``; None takes
            ``WARMROUTE_ADMIN``, else port 9090 of this machine.

    Raises:
        ConfigError: It is no such address.
    """

    __slots__ = ("_opener", "_token", "url")

    def __init__(self, url: str | None) -> None:
        self.url = _admin_url(url or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADMIN)
        self._token = os.environ.get(TOKEN_VARIABLE)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), _Stay
        )

    def __repr__(self) -> str:
        return f"<AdminClient {self.url}>"

    def get(self, path: str) -> dict[str, object]:
        """Fetch a JSON object.

        Raises:
            WarmrouteError: Nobody answers, or the answer is an error; with the remedy.
        """
        return self._call(path, None)

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """Send a JSON object; returns that of the answer, as `get` does."""
        return self._call(path, json.dumps(body).encode())

    def _call(self, path: str, body: bytes | None) -> dict[str, object]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url + path, body, headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                content = answer.read(_MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            raise WarmrouteError(self._refusal(path, error)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise WarmrouteError(
                f"no warmroute answers at {self.url}: {reason}; start one with "
                "'warmroute serve', or name its admin port with --admin URL"
            ) from error
        return self._object(path, content)

    def _object(self, path: str, content: bytes) -> dict[str, object]:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise WarmrouteError(
                f"{self.url}{path} answered no JSON object; is this the admin port?"
            )
        return value

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> str:
        try:
            told = json.loads(error.read(65_536))["error"]["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return (
                f"{self.url}{path} answered HTTP {error.code}; is this the admin port "
                "of this version of warmroute?"
            )
        remedy = f"; set {TOKEN_VARIABLE}" if error.code == 401 else ""
        return f"{told}{remedy}"


def _admin_url(text: str) -> str:
    base = admin_base(text)
    url = base if "://" in text else f"http://{base}"
    if url.startswith("http://:"):
        url = url.replace("http://:", "http://127.0.0.1:", 1)
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(
            f"--admin: {text!r} is no address (allowed: host:port, or a URL such as "
            f"{DEFAULT_ADMIN})"
        )
    return url
