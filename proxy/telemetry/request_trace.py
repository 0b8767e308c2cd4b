"""Marks of one request, cheap enough to be taken of requests that nobody keeps.

Whether a request was slow, failed or mispredicted shows at its end; so every request
leaves marks, and only the traces that are kept become spans (`span_tree`).
"""

import random
from typing import TYPE_CHECKING, Protocol

from opentelemetry.trace import SpanContext

from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.http.watch import Usage
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.prompt.prompt import Prompt
from warmroute.proxy.telemetry.answer_facts import AnswerFacts, read_answer
from warmroute.proxy.telemetry.request_facts import input_messages, sampling_facts
from warmroute.proxy.view.mirror import Mirror

if TYPE_CHECKING:
    from warmroute.proxy.telemetry.tracer import HeadFacts


class Attempt:
    """One sending of a request to a backend.

    Attributes:
        backend: Where it went.
        kind: Shape of the body, such as ``chat``.
        model: As the body names it.
        stream: Whether the answer comes as events.
        max_tokens: Bound on the answer.
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
        *("backend", "discount", "end_s", "error", "first_token_s", "kind"),
        *("max_tokens", "mirror", "model", "number", "session", "span_id"),
        *("start_s", "stream", "view"),
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
        # The prompt itself may be large, and marks wait for their export.
        self.kind = prompt.kind
        self.model = prompt.model
        self.stream = prompt.stream
        self.max_tokens = prompt.max_tokens
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

    def __repr__(self) -> str:
        return f"<Attempt {self.number} {self.backend.name} {self.error or 'ok'}>"


class Route:
    """What a decision was before the answer corrected it."""

    __slots__ = (
        *("block_size", "decision", "end_s", "index", "prompt_tokens"),
        *("reason", "start_s"),
    )

    def __init__(
        self,
        decision: Decision,
        start_s: float,
        end_s: float,
        block_size: int | None,
    ) -> None:
        self.decision = decision
        self.start_s = start_s
        self.end_s = end_s
        self.block_size = block_size
        self.index = decision.index
        self.reason = decision.reason
        self.prompt_tokens = decision.prompt_tokens

    def __repr__(self) -> str:
        return f"<Route {self.decision!r}>"


class Judging(Protocol):
    """What a trace needs from its tracer."""

    def ended(self, trace: "RequestTrace") -> None:
        """Keep an ended trace, or drop it; never blocks or raises."""
        ...


class RequestTrace:
    """Marks of one request, on the caller's monotonic clock, in seconds.

    Nothing here does I/O, and a trace that is never ended is never exported.

    Attributes:
        trace_id: Its trace, when it was sampled from the start; else None.
        parent: The client's span.
        route_mark: The decision, when there was one.
        attempts: In order.
        status: That the client got.
        error_type: Our stable code, when the request failed.
        usage: What the engine reported.
        body: The body as the engine got it.
        degraded: View and discount of the last attempt, if they fell by its end.
        asked: What the body says of sampling.
        messages: The prompt, where it is told.
        answer: Who answered, and why the answer ended.
    """

    __slots__ = (
        *("_tracer", "answer", "asked", "attempts", "body", "degraded", "end_s"),
        *("error_type", "head", "messages", "parent", "peer", "route_mark"),
        *("start_s", "status", "trace_id", "usage"),
    )

    def __init__(
        self,
        tracer: Judging,
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
        self.route_mark: Route | None = None
        self.attempts: list[Attempt] = []
        self.status = 0
        self.error_type: str | None = None
        self.usage: Usage | None = None
        self.body = b""
        self.degraded: tuple[str, float] | None = None
        self.asked: dict[str, float] = {}
        self.messages: str | None = None
        self.answer: AnswerFacts | None = None

    def route(
        self,
        decision: Decision,
        start_s: float,
        end_s: float,
        *,
        block_size: int | None = None,
    ) -> None:
        """Note the first decision; later ones are attempts."""
        self.route_mark = Route(decision, start_s, end_s, block_size)

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
        if self.attempts and self.attempts[-1].end_s is None:
            self.attempt_failed("retried", now)
        attempt = Attempt(backend, prompt, session, mirror, number, now)
        self.attempts.append(attempt)
        if self.trace_id is None:
            return None
        attempt.span_id = random.getrandbits(64) | 1
        return b"00-%032x-%016x-01" % (self.trace_id, attempt.span_id)

    def attempt_failed(self, error_type: str, now: float) -> None:
        """Note that the attempt brought no answer."""
        if self.attempts and self.attempts[-1].end_s is None:
            attempt = self.attempts[-1]
            attempt.end_s, attempt.error = now, error_type

    def first_token(self, now: float) -> None:
        """Note when the first token of the attempt came."""
        if self.attempts:
            self.attempts[-1].first_token_s = now

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

    def digest(self, *, prompts: bool) -> None:
        """Read what is told of body, answer and view, and let go of them.

        What waits for its export is small then, whatever the client sent.
        """
        self.asked = sampling_facts(self.body)
        if prompts:
            self.messages = input_messages(self.body)
        self.body = b""
        if self.usage is not None:
            self.answer = read_answer(self.usage.ending)
            self.usage.ending = b""
        if self.attempts:
            self.degraded = _degraded(self.attempts[-1])
        for attempt in self.attempts:
            attempt.mirror = None

    def __repr__(self) -> str:
        kind = "unsampled" if self.trace_id is None else f"{self.trace_id:032x}"
        return f"<RequestTrace {kind} attempts={len(self.attempts)}>"


def _degraded(attempt: Attempt) -> tuple[str, float] | None:
    mirror = attempt.mirror
    if mirror is None:
        return None
    discount = min(attempt.discount, mirror.trust.discount)
    if discount < 1.0 or mirror.source != attempt.view:
        return mirror.source, discount
    return None
