"""Marks of one request, from which its spans are made if it is kept (`span_tree`).

A sampled request leaves them under way, any other once something is unusual about it.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanContext

from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.http.watch import Usage
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.prompt.prompt import Prompt
from warmroute.proxy.view.mirror import Mirror

if TYPE_CHECKING:
    from warmroute.proxy.telemetry.tracer import HeadFacts, Tracer


class Attempt:
    """One sending of a request to a backend.

    Attributes:
        backend: Where it went.
        prompt: What the body asks for.
        session: Key of affinity.
        mirror: The view of the backend, when something was entered in it.
        view: The view's source at the dispatch.
        discount: Share of the view's promises that was believed then.
        number: Counts the attempts of the request, from 1.
        span_id: Of its CLIENT span; 0 until somebody needs it.
        start_s: When it was sent.
        end_s: When it failed; None for the last one, which ends with the request.
        first_token_s: When the first token came.
        error: Why it failed.
    """

    __slots__ = (
        *("backend", "discount", "end_s", "error", "first_token_s", "mirror"),
        *("number", "prompt", "session", "span_id", "start_s", "view"),
    )

    def __init__(
        self,
        backend: Backend,
        prompt: Prompt,
        session: str | None,
        mirror: Mirror | None,
        number: int,
        start_s: float,
    ) -> None:
        self.backend = backend
        self.prompt = prompt
        self.session = session
        self.mirror = mirror
        self.view = "none" if mirror is None else mirror.source
        self.discount = 1.0 if mirror is None else mirror.trust.discount
        self.number = number
        self.span_id = 0
        self.start_s = start_s
        self.end_s: float | None = None
        self.first_token_s: float | None = None
        self.error: str | None = None

    def degraded(self) -> tuple[str, float] | None:
        """Return source and discount of the view, if they fell until now."""
        mirror = self.mirror
        if mirror is None:
            return None
        discount = min(self.discount, mirror.trust.discount)
        if discount < 1.0 or mirror.source != self.view:
            return mirror.source, discount
        return None

    def __repr__(self) -> str:
        return f"<Attempt {self.number} {self.backend.name} {self.error or 'ok'}>"


class RequestTrace:
    """Marks of one request, on the caller's monotonic clock, in seconds.

    Nothing here does I/O, and a trace that is never ended is never exported. It holds
    what the request holds.

    Attributes:
        trace_id: Its trace, when it was sampled from the start; else None.
        parent: The client's span.
        decision: The first one, when there was one.
        index: What it chose, before an attempt failed.
        reason: Why.
        prompt_tokens: As counted before the engine told.
        block_size: Of the chosen backend, where known.
        routing_s: When the choice began.
        routed_s: When it was made.
        lost: The attempts that failed, in order.
        last: The attempt that is under way, or was to the end.
        status: That the client got.
        error_type: Our stable code, when the request failed.
        usage: What the engine reported.
        body: The body as the engine got it.
        degraded: Source and discount of the last attempt's view, if they had fallen
            by the end; known of a trace that is kept.
    """

    __slots__ = (
        *("_tracer", "block_size", "body", "decision", "degraded", "end_s"),
        *("error_type", "head", "index", "last", "lost", "parent", "peer"),
        *("prompt_tokens", "reason", "routed_s", "routing_s", "start_s", "status"),
        *("trace_id", "usage"),
    )

    def __init__(
        self,
        tracer: "Tracer",
        head: "HeadFacts",
        peer: bytes,
        parent: SpanContext | None,
        trace_id: int | None,
        start_s: float,
    ) -> None:
        self._tracer = tracer
        self.head = head
        self.peer = peer
        self.parent = parent
        self.trace_id = trace_id
        self.start_s = start_s
        self.end_s: float | None = None
        self.decision: Decision | None = None
        self.index = 0
        self.reason = ""
        self.prompt_tokens = 0
        self.block_size: int | None = None
        self.routing_s = self.routed_s = start_s
        self.lost: Sequence[Attempt] = ()
        self.last: Attempt | None = None
        self.status = 0
        self.error_type: str | None = None
        self.usage: Usage | None = None
        self.body = b""
        self.degraded: tuple[str, float] | None = None

    def route(
        self,
        decision: Decision,
        start_s: float,
        end_s: float,
        *,
        block_size: int | None = None,
    ) -> None:
        """Note the first decision; later ones are attempts."""
        self.decision = decision
        self.index = decision.index
        self.reason = decision.reason
        self.prompt_tokens = decision.prompt_tokens
        self.block_size = block_size
        self.routing_s = start_s
        self.routed_s = end_s

    def attempt(
        self,
        backend: Backend,
        prompt: Prompt,
        session: str | None,
        mirror: Mirror | None,
        number: int,
        now: float,
    ) -> bytes | None:
        """Note that the request is sent to *backend*.

        Returns:
            The ``traceparent`` to send in place of the client's; None when the
            request is not sampled, and headers pass as they came.
        """
        if self.last is not None:
            self.attempt_failed("retried", now)
            self.lost = [*self.lost, self.last]
        self.last = attempt = Attempt(backend, prompt, session, mirror, number, now)
        if self.trace_id is None:
            return None
        attempt.span_id = random.getrandbits(64) | 1
        return b"00-%032x-%016x-01" % (self.trace_id, attempt.span_id)

    def attempt_failed(self, error_type: str, now: float) -> None:
        """Note that the attempt brought no answer."""
        attempt = self.last
        if attempt is not None and attempt.end_s is None:
            attempt.end_s, attempt.error = now, error_type

    def first_token(self, now: float) -> None:
        """Note when the first token of the attempt came."""
        if self.last is not None:
            self.last.first_token_s = now

    def end(
        self,
        now: float,
        status: int,
        error_type: str | None = None,
        usage: Usage | None = None,
        body: bytes = b"",
    ) -> None:
        """End the request and let the tracer judge; the first call counts."""
        if self.end_s is not None:
            return
        self.end_s = now
        self.status = status
        self.error_type = error_type
        self.usage = usage
        self.body = body
        self._tracer.ended(self)

    def settle(self) -> None:
        """Note what lives on, as it is at the end of the request."""
        if self.last is not None:
            self.degraded = self.last.degraded()

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Return all of them, in order."""
        return self.lost if self.last is None else [*self.lost, self.last]

    def __repr__(self) -> str:
        kind = "unsampled" if self.trace_id is None else f"{self.trace_id:032x}"
        return f"<RequestTrace {kind} attempts={len(self.attempts)}>"
