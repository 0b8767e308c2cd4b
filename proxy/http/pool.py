"""Connections to one backend that wait for their next request."""

from collections import deque

from warmroute.proxy.http.outbound import UpstreamConnection


class ConnectionPool:
    """Keep idle connections, newest first, no longer than the engine does.

    uvicorn closes after 5 s of idleness, and a request sent into that close is
    lost; so the pool lets go well before.

    Args:
        idle_s: Seconds that a connection may wait.
    """

    __slots__ = ("_idle", "idle_s", "is_closed")

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._idle: deque[UpstreamConnection] = deque()
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<ConnectionPool {len(self._idle)} idle>"

    def __len__(self) -> int:
        return len(self._idle)

    def acquire(self, now: float) -> UpstreamConnection | None:
        """Take the connection that was used last, if one is fit for use."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.transport.is_closing():
                continue
            if now - connection.released_at > self.idle_s:
                connection.abort()
                continue
            connection.is_reused = True
            return connection
        return None

    def release(self, connection: UpstreamConnection, now: float) -> None:
        """Give back a connection whose answer is complete."""
        if connection.transport.is_closing():
            return
        if self.is_closed:
            connection.abort()
            return
        connection.released_at = now
        self._idle.append(connection)

    def sweep(self, now: float) -> None:
        """Close what has waited too long; the oldest stand in front."""
        idle = self._idle
        while idle and (idle[0].is_closed or now - idle[0].released_at > self.idle_s):
            idle.popleft().abort()

    def close(self) -> None:
        """Close all idle connections, and those given back from now on."""
        self.is_closed = True
        while self._idle:
            self._idle.pop().abort()
