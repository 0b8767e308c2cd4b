"""Paths of the data port that the proxy answers itself."""

from urllib.parse import unquote

import msgspec

from warmroute.adapters.endpoint import INSTANCE_HEADER
from warmroute.policies.errors import ClientError
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.reply import error_body

_MODELS = "/v1/models"


class OwnPaths:
    """Health and the union of the models; everything else belongs to engines.

    Attributes:
        is_draining: Whether it is told that the process ends.
        extra: A header of every answer: which process answers.
    """

    __slots__ = ("_fleet", "extra", "is_draining")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.extra = f"{INSTANCE_HEADER}: {fleet.instance_id}\r\n".encode()
        self.is_draining = False

    def __repr__(self) -> str:
        return f"<OwnPaths {'draining' if self.is_draining else 'open'}>"

    def answer(self, head: RequestHead) -> tuple[int, bytes] | None:
        """Return status and body for an own path, else None."""
        if head.method not in (b"GET", b"HEAD"):
            return None
        path = head.path
        if path == "/livez":
            return 200, b'{"status":"alive"}'
        if path in ("/health", "/readyz"):
            return self._ready()
        if path in (_MODELS, _MODELS + "/"):
            listing = {"object": "list", "data": self._fleet.models()}
            return 200, msgspec.json.encode(listing)
        if path.startswith(_MODELS + "/"):
            return self._model(path[len(_MODELS) + 1 :])
        return None

    def _ready(self) -> tuple[int, bytes]:
        if self.is_draining:
            return 503, b'{"status":"draining"}'
        if not self._fleet.is_ready:
            return 503, b'{"status":"no healthy backend"}'
        return 200, b'{"status":"ready"}'

    def _model(self, name: str) -> tuple[int, bytes]:
        name = unquote(name)
        for card in self._fleet.models():
            if card.get("id") == name:
                return 200, msgspec.json.encode(card)
        return 404, error_body(
            ClientError(
                404,
                "model_not_found",
                f"no backend serves the model {name[:200]!r}; GET /v1/models lists "
                "those that are served",
            )
        )


class ReadyAnswer:
    """The work of a request whose answer is known at once."""

    __slots__ = ("_answer", "_client", "_keeps_alive")

    def __init__(
        self, client: ClientConnection, answer: bytes, *, keeps_alive: bool
    ) -> None:
        self._client = client
        self._answer = answer
        self._keeps_alive = keeps_alive

    def begin(self) -> None:
        """Answer at once."""
        self._client.write(self._answer)
        self._client.finished(keep_alive=self._keeps_alive)

    def client_gone(self) -> None:
        """Nothing is left to do."""

    def client_writable(self, writable: bool) -> None:
        """Nothing to hold back."""

    def expired(self) -> None:
        """Nothing can stand still here."""

    def interrupted(self) -> None:
        """Nothing can be cut short here."""
