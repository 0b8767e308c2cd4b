"""Who may drive an engine's cache over HTTP, where a plugin put the door."""

import os

from warmroute.adapters.kv_door import check_json, check_open, check_token
from warmroute.adapters.kv_plugin.names import TOKEN_VARIABLE

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
        check_open(self.shut)
        check_token(authorization, self._token, TOKEN_VARIABLE)
        check_json(method, kind)
