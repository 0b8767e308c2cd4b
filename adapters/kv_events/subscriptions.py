"""Who receives what: the SUB sockets of a process, shared where an address is."""

import select
from collections.abc import Callable

import zmq

from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.kv_events.socket import EventSocket

Receive = Callable[[int, bytes], None]
Turned = Callable[[], None]
IsFull = Callable[[], bool]


class Subscription:
    """One receiver of one topic at one address; it is closed by `Subscriptions`."""

    __slots__ = ("address", "is_full", "receive", "turned")

    def __init__(
        self, address: EventAddress, receive: Receive, turned: Turned, is_full: IsFull
    ) -> None:
        self.address = address
        self.is_full = is_full
        self.receive = receive
        self.turned = turned


class Subscriptions:
    """All subscriptions of a process.

    Several engines may connect to one address that is bound here: they share its
    socket and are told apart by their exact topics. ZMQ matches prefixes, so that
    "kv-1" would receive what is meant for "kv-10".

    Args:
        context: ZMQ's; owned by the caller.
        on_read: Called when receivers have got what had come, or enough for now.
    """

    __slots__ = (
        "_by_descriptor",
        "_context",
        "_members",
        "_on_read",
        "_ready",
        "_sockets",
    )

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._on_read = on_read
        self._sockets: dict[str, EventSocket] = {}
        self._members: dict[str, list[Subscription]] = {}
        self._by_descriptor: dict[int, EventSocket] = {}
        self._ready = select.epoll()

    def __repr__(self) -> str:
        count = sum(map(len, self._members.values()))
        return f"<Subscriptions [{count} on {len(self._sockets)} sockets]>"

    def look(self) -> None:
        """Hand on what has come, without waiting for the loop to tell of it.

        While nothing has: one call of the system, however many sockets there are.
        """
        if self._by_descriptor:
            for descriptor, _ in self._ready.poll(0):
                self._by_descriptor[descriptor].read()

    def add(
        self,
        address: EventAddress,
        receive: Receive,
        turned: Turned,
        is_full: IsFull = lambda: False,
    ) -> Subscription:
        """Begin to receive what *address* publishes.

        Args:
            address: The publisher, as `resolve` returns it.
            receive: Called with number and payload of each message.
            turned: Called when a connection to the address is gone, or is there.
            is_full: Tells that the receiver wants nothing for now; what comes waits
                in ZMQ's queue, and that of all who share the address.

        Raises:
            AdapterError: The address cannot be used.
        """
        member = Subscription(address, receive, turned, is_full)
        endpoint = address.endpoint
        if endpoint not in self._sockets:
            socket = self._open(endpoint, address.binds)
            self._sockets[endpoint] = self._by_descriptor[socket.descriptor] = socket
            self._ready.register(socket.descriptor, select.EPOLLIN)
        self._members.setdefault(endpoint, []).append(member)
        self._sockets[endpoint].subscribe(address.topic)
        return member

    def remove(self, member: Subscription) -> None:
        """Stop receiving; the last one of an address closes its socket."""
        endpoint = member.address.endpoint
        members = self._members.get(endpoint, [])
        if member not in members:
            return
        members.remove(member)
        if not members:
            del self._members[endpoint]
            socket = self._sockets.pop(endpoint)
            del self._by_descriptor[socket.descriptor]
            self._ready.unregister(socket.descriptor)
            socket.close()

    def close(self) -> None:
        """Close every socket."""
        for socket in self._sockets.values():
            socket.close()
        self._ready.close()
        self._by_descriptor.clear()
        self._sockets.clear()
        self._members.clear()

    def _open(self, endpoint: str, binds: bool) -> EventSocket:
        def on_message(topic: bytes, seq: int, payload: bytes) -> None:
            name = topic.decode("utf-8", "replace")
            for member in self._members.get(endpoint, ()):
                if not member.address.topic or member.address.topic == name:
                    member.receive(seq, payload)

        def on_turn() -> None:
            for member in list(self._members.get(endpoint, ())):
                member.turned()

        def is_full() -> bool:
            return any(one.is_full() for one in self._members.get(endpoint, ()))

        return EventSocket(
            self._context,
            endpoint,
            binds,
            on_message,
            on_turn,
            is_full,
            self._on_read,
        )
