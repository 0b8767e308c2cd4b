"""Who may drive an engine's cache over HTTP, where a plugin put the door."""

import hmac
import os

from warmroute.adapters.kv_plugin.names import TOKEN_VARIABLE
from warmroute.policies.errors import ClientError

CLOSED = (
    f"the door is off by default; set {TOKEN_VARIABLE} in the engine's environment "
    f"and send it as a bearer token"
)


class Door:
    """Admit whoever brings the token; without a token, nobody, from nowhere.

    Bodies must be JSON, because web pages cannot send that without asking.

    Args:
        token: Bearer token; None or empty shuts the door.
    """

    __slots__ = ("_token", "shut")

    def __init__(self, token: str | None) -> None:
        self._token = token.encode() if token else b""
        self.shut: str | None = None if token else CLOSED
        """Why nobody is admitted; None when somebody may be."""

    def __repr__(self) -> str:
        return f"<Door {'shut' if self.shut else 'with a token'}>"

    @classmethod
    def of_environment(cls) -> "Door":
        """Return the door that the operator's environment asks for."""
        return cls(os.environ.get(TOKEN_VARIABLE, "").strip())

    def check(self, method: str, authorization: str, kind: str) -> None:
        """Return when the call may pass.

        Args:
            method: HTTP method.
            authorization: The Authorization header.
            kind: Content type of the body.

        Raises:
            ClientError: 401, 403 or 415, with the remedy.
        """
        if self.shut is not None:
            raise ClientError(403, "kv_control_off", f"KV control is off: {self.shut}")
        scheme, _, given = authorization.partition(" ")
        brought = given.strip().encode(errors="surrogateescape")
        is_right = hmac.compare_digest(brought, self._token)
        if scheme.lower() != "bearer" or not is_right:
            raise ClientError(
                401,
                "engine_token_wrong",
                f"KV control wants the engine's token; send the header "
                f"'Authorization: Bearer ${TOKEN_VARIABLE}'",
            )
        if method == "POST" and kind.partition(";")[0].strip() != "application/json":
            raise ClientError(
                415,
                "content_type_not_json",
                f"content type {kind[:200]!r} (allowed: application/json; curl sends "
                f"it with --json)",
            )
