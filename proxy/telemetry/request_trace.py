"""The three spans of one sampled request."""

from collections.abc import Sequence
from typing import Protocol

from opentelemetry.trace import SpanContext, SpanKind

from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.telemetry import span_names as names

Attribute = str | bool | int | float | Sequence[str]

_MAX_TEXT = 256


class Span:
    """One span as plain facts, until its trace is exported."""

    __slots__ = ("attributes", "context", "end_s", "error", "kind", "name", "start_s")

    def __init__(
        self, name: str, kind: SpanKind, context: SpanContext, start_s: float
    ) -> None:
        self.name = name
        self.kind = kind
        self.context = context
        self.start_s = start_s
        self.end_s = start_s
        self.error: str | None = None
        self.attributes: dict[str, Attribute] = {}

    def fail(self, error_type: str) -> None:
        """Mark the span as an error of *error_type*."""
        self.error = error_type
        self.attributes[names.ERROR_TYPE] = error_type

    def __repr__(self) -> str:
        return f"<Span {self.name!r} {self.error or 'ok'}>"


class Exporting(Protocol):
    """What a trace needs from its tracer."""

    def context(self, trace_id: int) -> SpanContext:
        """Return a fresh sampled span context of *trace_id*."""
        ...

    def export(self, trace: "RequestTrace") -> None:
        """Take over the spans of an ended trace; never blocks or raises."""
        ...


class RequestTrace:
    """Collect the SERVER, route and CLIENT spans of one sampled request.

    All times are seconds of the caller's monotonic clock; *wall_offset_ns*
    turns them into Unix time. Nothing here does I/O, and a trace that is never
    ended is simply never exported.
    """

    __slots__ = (
        *("_attempt", "_ended", "_exporter", "parent", "server", "spans"),
        *("trace_id", "wall_offset_ns"),
    )

    def __init__(
        self,
        exporter: Exporting,
        server: Span,
        parent: SpanContext | None,
        wall_offset_ns: int,
    ) -> None:
        self._exporter = exporter
        self._attempt: Span | None = None
        self._ended = False
        self.parent = parent
        self.server = server
        self.spans = [server]
        self.trace_id = server.context.trace_id
        self.wall_offset_ns = wall_offset_ns

    @property
    def trace_hex(self) -> str:
        """Return the trace id as logs and UIs write it."""
        return f"{self.trace_id:032x}"

    def route(
        self,
        decision: Decision,
        start_s: float,
        end_s: float,
        *,
        block_size: int | None = None,
    ) -> None:
        """Add the ``warmroute.route`` span of a decision."""
        span = self._child(names.ROUTE_SPAN, SpanKind.INTERNAL, start_s)
        span.end_s = end_s
        cost = decision.cost(decision.index)
        self.server.attributes[names.REQUEST_ID] = decision.request_id
        span.attributes.update(
            {
                names.POLICY: decision.policy,
                names.CANDIDATES: len(decision.roster.routable),
                names.BACKEND: decision.chosen,
                names.REASON: decision.reason,
                names.GRADE: decision.grade,
            }
        )
        if cost is not None:
            span.attributes[names.SCORE] = cost[3]
        if block_size:
            span.attributes.update(_blocks(decision, block_size))

    def attempt(
        self,
        decision: Decision,
        now: float,
        *,
        kind: str,
        engine: str,
        host: str,
        port: int,
        stream: bool = False,
        max_tokens: int | None = None,
        session: str | None = None,
    ) -> str:
        """Start the CLIENT span of an attempt.

        A previous attempt that is still open ends here as failed.

        Returns:
            The ``traceparent`` to send to the engine instead of the client's.
        """
        if self._attempt is not None:
            self.attempt_failed("retried", now)
        operation = names.OPERATIONS.get(kind, kind)
        name = f"{operation} {decision.model}" if decision.model else operation
        span = self._attempt = self._child(name, SpanKind.CLIENT, now)
        span.attributes.update(
            {
                names.OPERATION: operation,
                names.PROVIDER: engine,
                names.REQUEST_STREAM: stream,
                names.SERVER_ADDRESS: host,
                names.SERVER_PORT: port,
            }
        )
        _add(span, names.REQUEST_MODEL, decision.model)
        _add(span, names.REQUEST_MAX_TOKENS, max_tokens)
        _add(span, names.CONVERSATION, session and session[:_MAX_TEXT])
        if decision.attempts > 1:
            span.attributes[names.HTTP_RESEND] = decision.attempts - 1
        return f"00-{self.trace_id:032x}-{span.context.span_id:016x}-01"

    def attempt_failed(self, error_type: str, now: float) -> None:
        """End the CLIENT span of an attempt that brought no answer."""
        span, self._attempt = self._attempt, None
        if span is not None:
            span.end_s = now
            span.fail(error_type)

    def first_token(self, now: float) -> None:
        """Note when the first token of the attempt came."""
        if self._attempt is not None:
            self._attempt.attributes[names.FIRST_CHUNK_S] = now - self._attempt.start_s

    def end(
        self,
        now: float,
        status: int,
        *,
        decision: Decision | None = None,
        error_type: str | None = None,
        response_id: str | None = None,
        response_model: str | None = None,
        finish_reasons: Sequence[str] = (),
    ) -> None:
        """End all spans and hand them to the exporter; the first call counts.

        Args:
            now: The end, on the monotonic clock.
            status: The status the client got.
            decision: The settled decision, when there was one.
            error_type: Our stable code, when the request failed.
            response_id: The id in the engine's answer.
            response_model: The model in the engine's answer.
            finish_reasons: One for each choice of the answer.
        """
        if self._ended:
            return
        self._ended = True
        if self._attempt is not None:
            span = self._attempt
            _add(span, names.RESPONSE_ID, response_id)
            _add(span, names.RESPONSE_MODEL, response_model)
            _add(span, names.FINISH_REASONS, tuple(finish_reasons) or None)
            _finish_client(span, now, status, decision, error_type)
        self.server.end_s = now
        self.server.attributes[names.HTTP_STATUS] = status
        if status >= 500 or (error_type is not None and status < 400):
            self.server.fail(error_type or str(status))
        elif error_type is not None:
            self.server.attributes[names.ERROR_TYPE] = error_type
        self._exporter.export(self)

    def _child(self, name: str, kind: SpanKind, start_s: float) -> Span:
        span = Span(name, kind, self._exporter.context(self.trace_id), start_s)
        self.spans.append(span)
        return span

    def __repr__(self) -> str:
        return f"<RequestTrace {self.trace_hex} spans={len(self.spans)}>"


def _add(span: Span, key: str, value: Attribute | None) -> None:
    if value is not None:
        span.attributes[key] = value


def _blocks(decision: Decision, block_size: int) -> dict[str, Attribute]:
    return {
        names.BLOCK_SIZE: block_size,
        names.PROMPT_BLOCKS: decision.prompt_tokens // block_size,
        names.MATCHED_BLOCKS: decision.predicted_tokens // block_size,
        names.BEST_MATCHED_BLOCKS: decision.best_tokens // block_size,
    }


def _finish_client(
    span: Span,
    now: float,
    status: int,
    decision: Decision | None,
    error_type: str | None,
) -> None:
    span.end_s = now
    span.attributes[names.HTTP_STATUS] = status
    if status >= 400 or error_type is not None:
        span.fail(error_type or str(status))
    if decision is None or decision.tokens is None:
        return
    predicted, cached = decision.predicted_tokens, decision.cached_tokens
    span.attributes[names.INPUT_TOKENS] = decision.prompt_tokens
    span.attributes[names.PREDICTED_TOKENS] = predicted
    _add(span, names.OUTPUT_TOKENS, decision.output_tokens)
    _add(span, names.CACHED_TOKENS, cached)
    if cached is not None:
        span.attributes[names.PREDICTION_ERROR] = predicted - cached
