"""An engine's answer on its way to the client: its head, its bytes, its tokens."""

from collections.abc import Callable
from typing import Final, Protocol

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.outbound import Answer
from warmroute.proxy.http.reframe import Reframer, without_transfer_encoding
from warmroute.proxy.http.reply import error_event
from warmroute.proxy.http.splice import UsageFilter
from warmroute.proxy.http.watch import AnswerWatch, StreamWatch, Usage
from warmroute.proxy.ledger.histogram import Histogram

_PROGRESS_S: Final = 0.25
_AFTER_FAILURE_S: Final = 1.0


class Owner(Protocol):
    """Who is told how an answer moves on."""

    def first_token(self, now: float) -> None:
        """Learn when the first token came."""

    def progressed(self) -> None:
        """Learn now and then that a good answer moves on."""


class Relay:
    """Pass one answer on, and note when its tokens come.

    Args:
        owner: Who is told how it moves on.
        client: Who gets it.
        head: The request that it answers.
        answer: The engine's head.
        clock: Monotonic seconds.
        now: When the head had come.
        idle_s: How long neither side may stand still.
        gaps: Counts the seconds between two tokens.
        extra_lines: Header lines to add.
        keeps_alive: Whether the client's connection may stay open after it.
        hides_usage: Whether the usage event of a stream is ours alone.
        keeps_ending: Whether the last events of a stream are asked for at its end.
    """

    __slots__ = (
        *("_answer", "_client", "_clock", "_gaps", "_idle_s", "_now", "_owner"),
        *("_pending", "_progress_at", "_reframer", "_token_at", "_watch"),
        *("keeps_alive", "status"),
    )

    def __init__(
        self,
        owner: Owner,
        client: ClientConnection,
        head: RequestHead,
        answer: Answer,
        clock: Callable[[], float],
        now: float,
        idle_s: float,
        gaps: Histogram,
        extra_lines: bytes,
        keeps_alive: bool,
        hides_usage: bool,
        keeps_ending: bool = False,
    ) -> None:
        self._owner = owner
        self._client = client
        self._answer = answer
        self.status = answer.status
        self._clock = clock
        self._now = now
        self._idle_s = idle_s
        self._gaps = gaps
        # What ends at once is told as a success, not as progress.
        self._progress_at = now + _PROGRESS_S
        self._token_at: float | None = None
        self._watch: AnswerWatch | StreamWatch | None = None
        self._reframer: Reframer | None = None
        is_old, kind = head.version == "1.0", answer.content_type
        if kind[:17] == b"text/event-stream":
            self._watch = StreamWatch(keeps_ending)
            self._progress_at = 0.0
            extra_lines += b"x-accel-buffering: no\r\n"
        else:
            hides_usage = False
            if kind[:16] == b"application/json":
                self._watch = AnswerWatch()
        if is_old or hides_usage:
            self._reframer = _reframer(answer, is_old, hides_usage)
        ends_by_close = answer.body_until_close or (is_old and answer.chunked)
        self.keeps_alive = keeps_alive and not ends_by_close
        self._pending = _head(answer, extra_lines, is_old, self.keeps_alive)

    def body(self, piece: bytes) -> None:
        """See a piece of the body without its framing, before `data`."""
        now = self._now
        if not self._pending:  # else the head has just come
            self._now = now = self._clock()
        watch = self._watch
        if watch is not None and watch.feed(piece):
            if self._token_at is None:
                self._owner.first_token(now)
            else:
                self._gaps.observe(now - self._token_at)
            self._token_at = now
        if self._reframer is not None:
            self._reframer.feed(piece)

    def data(self, data: bytes) -> None:
        """Pass bytes on, framing included, exactly as received."""
        client = self._client
        if self._reframer is not None:
            data = self._reframer.take()
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if data:
            client.write(data)
        now = self._now
        client.deadline = now + self._idle_s
        if now > self._progress_at:
            self._progress_at = now + _PROGRESS_S
            if self.status < 400:
                self._owner.progressed()

    def end(self) -> Usage | None:
        """End the body; returns what the answer reported."""
        if self._reframer is not None:
            self._client.write(self._reframer.end())
        return self._watch.usage() if self._watch is not None else None

    def fail(self, error: ClientError, *, at_boundary: bool) -> None:
        """End a stream with an error event; cut what has no place for one."""
        answer = self._answer
        is_stream = isinstance(self._watch, StreamWatch)
        chunked = answer.chunked if self._reframer is None else self._reframer.chunked
        fits = self._reframer is not None or (chunked and at_boundary)
        if is_stream and (fits or answer.body_until_close):
            client = self._client
            client.write(self._pending + error_event(error, chunked=chunked))
            client.finished(keep_alive=self.keeps_alive)
            # Closed soon; at once would catch the next request of a client that
            # keeps connections and has read that this answer is complete.
            client.deadline = min(client.deadline, self._clock() + _AFTER_FAILURE_S)
        else:
            self._client.abort()


def _head(answer: Answer, extra_lines: bytes, is_old: bool, keeps_alive: bool) -> bytes:
    raw = answer.raw
    if is_old and answer.chunked:
        raw = without_transfer_encoding(raw)
    if not keeps_alive:
        extra_lines += b"connection: close\r\n"
    elif is_old:
        extra_lines += b"connection: keep-alive\r\n"
    return b"%b%b\r\n" % (raw, extra_lines)


def _reframer(answer: Answer, is_old: bool, hides_usage: bool) -> Reframer | None:
    usage_filter = UsageFilter() if hides_usage else None
    if is_old and answer.chunked:
        return Reframer(chunked=False, usage_filter=usage_filter)
    if usage_filter and (answer.chunked or answer.body_until_close):
        return Reframer(chunked=answer.chunked, usage_filter=usage_filter)
    return None
