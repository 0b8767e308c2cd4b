"""What a client's connection asks of the listener that it belongs to."""

from typing import TYPE_CHECKING, Protocol

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.outbox import Outbox
from warmroute.proxy.http.read_limits import ReadLimits
from warmroute.proxy.http.work import Work

if TYPE_CHECKING:
    from warmroute.proxy.http.inbound import ClientConnection


class Port(Protocol):
    """The listener that a connection belongs to.

    Attributes:
        read_limits: What its clients may send.
        outbox: Holds small writes to them.
        is_draining: Whether no more requests are taken.
        held_bytes: What the bodies take that are being read or answered.
    """

    read_limits: ReadLimits
    outbox: Outbox
    is_draining: bool
    held_bytes: int

    def opened(self, connection: "ClientConnection") -> bool:
        """Count a new connection; False when there are too many."""

    def closed(self, connection: "ClientConnection") -> None:
        """Forget a connection."""

    def refused(self, error: ClientError) -> None:
        """Count a request that never became work."""

    def work(
        self, connection: "ClientConnection", head: RequestHead, body: bytes
    ) -> Work:
        """Make the work that answers a request."""
