"""Who may drive the engine's cache over HTTP."""

from warmroute.adapters.caller import is_address, is_loopback
from warmroute.adapters.kv_door import check_json, check_open, check_token
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
        if self._token is None and not is_loopback(host):
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
        check_open(self.shut)
        if self._token is not None:
            check_token(authorization, self._token, TOKEN_VARIABLE)
        elif not is_address(host):
            raise ClientError(
                403,
                "host_not_allowed",
                f"host {host[:200]!r} (allowed without a token: localhost or an IP "
                f"address); set {TOKEN_VARIABLE} to use a name",
            )
        check_json(method, kind)
