"""Who may use the admin server.

With a token: who brings it. Without one: who reaches a loopback address under
a name that no DNS server can forge, so that a web page opened on this machine
cannot reach it by rebinding its own name; and never by a form, because writes
need a JSON content type, which browsers ask leave for first.
"""

from warmroute.adapters.caller import brings, is_address, is_loopback
from warmroute.policies.errors import ClientError

OPEN_PATHS = frozenset({"/livez", "/readyz"})
OPEN_FOLDER = "/static/"
"""The files of the dashboard's page, which asks for the token; nothing is in them."""


class Guard:
    """Admit or refuse requests to the admin server.

    Args:
        bind: The address the admin server listens on.
        token: The bearer token, when one is configured.
    """

    __slots__ = ("_is_local", "_token")

    def __init__(self, bind: str, token: str | None) -> None:
        self._is_local = is_loopback(bind)
        self._token = token.encode() if token else None

    def check(
        self, method: str, path: str, host: str, authorization: str, content_type: str
    ) -> None:
        """Return when the request may pass.

        Raises:
            ClientError: 401, 403 or 415, with the remedy.
        """
        is_read = method in ("GET", "HEAD")
        if path in OPEN_PATHS and is_read:
            return
        if self._token is not None:
            if not (path.startswith(OPEN_FOLDER) and is_read):
                self._check_token(self._token, authorization)
        else:
            self._check_local(host)
        if method == "POST" and content_type.lower() != "application/json":
            raise ClientError(
                415,
                "content_type_not_json",
                f"content type {content_type!r} of a POST "
                "(allowed: application/json; send it with an empty body too)",
            )

    def _check_token(self, token: bytes, authorization: str) -> None:
        if not brings(authorization, token):
            raise ClientError(
                401,
                "admin_token_wrong",
                "the admin server wants its token; "
                "send the header 'Authorization: Bearer <admin_token>'",
            )

    def _check_local(self, host: str) -> None:
        if not self._is_local:
            raise ClientError(
                403,
                "admin_token_missing",
                "the admin server listens beyond loopback without a token; "
                "set admin_token in the configuration",
            )
        if not is_address(host):
            raise ClientError(
                403,
                "host_not_allowed",
                f"host {host[:256]!r} (allowed without a token: "
                "localhost or an IP address); set admin_token to use a name",
            )
