"""Who may drive the engine's cache over HTTP."""

import hmac
import ipaddress

from warmroute.policies.errors import ClientError

TOKEN_VARIABLE = "WARMROUTE_ENGINE_TOKEN"  # noqa: S105 - a name, no secret


class Door:
    """Admit or refuse calls to KV control.

    With a token: whoever brings it. Without one: whoever reaches an engine that
    listens on loopback only, by an address and not by a name, which a web page could
    rebind to it. An engine that others can reach has no door without a token. Bodies
    must be JSON, because web pages cannot send that without asking.

    Args:
        host: Address that the engine listens on.
        token: Bearer token; None or empty without one.
    """

    __slots__ = ("_token", "shut")

    def __init__(self, host: str, token: str | None = None) -> None:
        self._token = token.encode() if token else None
        self.shut: str | None = None
        """Why nobody is admitted; None when somebody may be."""
        if self._token is None and not is_local(host):
            self.shut = (
                f"the engine listens on {host}, beyond loopback, without a token; "
                f"set {TOKEN_VARIABLE} in its environment"
            )

    def __repr__(self) -> str:
        return f"<Door {'shut' if self.shut else 'token' if self._token else 'local'}>"

    def check(self, method: str, host: str, authorization: str, kind: str) -> None:
        """Return when the call may pass.

        Args:
            method: HTTP method.
            host: The Host header.
            authorization: The Authorization header.
            kind: Content type of the body.

        Raises:
            ClientError: 401, 403 or 415, with the remedy.
        """
        if self.shut is not None:
            raise ClientError(403, "kv_control_off", f"KV control is off: {self.shut}")
        if self._token is not None:
            self._check_token(self._token, authorization)
        elif not is_address(host):
            raise ClientError(
                403,
                "host_not_allowed",
                f"host {host[:200]!r} (allowed without a token: localhost or an IP "
                f"address); set {TOKEN_VARIABLE} to use a name",
            )
        if method == "POST" and kind.lower() != "application/json":
            raise ClientError(
                415,
                "content_type_not_json",
                f"content type {kind[:200]!r} (allowed: application/json; curl sends "
                f"it with --json)",
            )

    def _check_token(self, token: bytes, authorization: str) -> None:
        scheme, _, given = authorization.partition(" ")
        brought = given.strip().encode(errors="surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(brought, token):
            raise ClientError(
                401,
                "engine_token_wrong",
                f"KV control wants the engine's token; send the header "
                f"'Authorization: Bearer ${TOKEN_VARIABLE}'",
            )


def is_local(host: str) -> bool:
    """Return whether *host* is an address that only this machine reaches."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Return whether a Host header is localhost or an IP address, or empty."""
    name = (
        host.rpartition("]")[0].lstrip("[") if "]" in host else host.partition(":")[0]
    )
    if name.lower() in ("", "localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
