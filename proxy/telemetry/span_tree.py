"""From the marks of an ended request to its spans."""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.telemetry import span_names as names
from warmroute.proxy.telemetry.answer_facts import read_answer
from warmroute.proxy.telemetry.attributes import Attribute
from warmroute.proxy.telemetry.request_facts import input_messages, sampling_facts
from warmroute.proxy.telemetry.request_trace import Attempt, RequestTrace
from warmroute.proxy.telemetry.shared_facts import (
    SharedFacts,
    facts_of_answer,
    facts_of_backend,
    facts_of_choice,
    facts_of_prompt,
    facts_of_request,
)
from warmroute.proxy.telemetry.span import CLIENT, INTERNAL, SERVER, Event, Span
from warmroute.proxy.telemetry.unusual import is_failure

_MAX_TEXT = 256


class SpanTree:
    """Build the spans of kept traces.

    Args:
        scheme: http or https, as the data port speaks.
        host: Address of the data port.
        port: Port of the data port.
        prompts: Whether the text of prompts goes into the spans.
    """

    __slots__ = ("_listener", "prompts")

    def __init__(self, scheme: str, host: str, port: int, *, prompts: bool) -> None:
        self._listener = SharedFacts(
            {
                names.URL_SCHEME: scheme,
                names.SERVER_ADDRESS: host,
                names.SERVER_PORT: port,
            }
        )
        self.prompts = prompts

    def __repr__(self) -> str:
        return f"<SpanTree {'with prompts' if self.prompts else 'without prompts'}>"

    def spans(self, trace: RequestTrace, sampled_by: str) -> list[Span]:
        """Return the SERVER span, that of the route, and one for each attempt."""
        server = self._server(trace, sampled_by)
        found = [server]
        if trace.decision is not None:
            server.own[names.REQUEST_ID] = trace.decision.request_id
            found.append(_route(trace, trace.decision, server))
        attempts = trace.attempts
        found += [self._client(trace, attempt, server) for attempt in attempts]
        if trace.lost:
            server.events += _retries(attempts)
        return found

    def _server(self, trace: RequestTrace, sampled_by: str) -> Span:
        head, parent = trace.head, trace.parent
        method = head.method.decode("latin-1")
        verb = method if method in names.METHODS else "HTTP"
        is_known = head.path in names.ROUTES
        trace_id = trace.trace_id
        if trace_id is None:
            drawn = random.getrandbits(128) | 1
            trace_id = drawn if parent is None else parent.trace_id
        span = Span(
            f"{verb} {head.path}" if is_known else verb,
            SERVER,
            trace_id.to_bytes(16, "big"),
            _span_id(),
            None if parent is None else _span_id(parent.span_id),
            trace.start_s,
            trace.end_s or trace.start_s,
            is_remote=parent is not None,
        )
        path, method = head.path[:_MAX_TEXT], method[:_MAX_TEXT]
        asked = facts_of_request(method, path, head.version, trace.status, sampled_by)
        span.shared = [self._listener, asked]
        span.add(names.CLIENT_ADDRESS, trace.peer.decode("latin-1") or None)
        agent = head.fields.get(b"user-agent", b"")[:_MAX_TEXT]
        span.add(names.USER_AGENT, agent.decode("latin-1") or None)
        if is_failure(trace.status, trace.error_type):
            span.fail(trace.error_type or str(trace.status))
        else:
            span.add(names.ERROR_TYPE, trace.error_type)
        return span

    def _client(self, trace: RequestTrace, attempt: Attempt, server: Span) -> Span:
        backend, prompt = attempt.backend, attempt.prompt
        operation = names.OPERATIONS.get(prompt.kind, prompt.kind)
        model = prompt.model and prompt.model[:_MAX_TEXT]
        is_last = attempt.end_s is None
        span = Span(
            f"{operation} {model}" if model else operation,
            CLIENT,
            server.trace_id,
            _span_id(attempt.span_id),
            server.span_id,
            attempt.start_s,
            (trace.end_s if is_last else attempt.end_s) or attempt.start_s,
        )
        span.shared = [
            facts_of_backend(backend.name, backend.engine, backend.host, backend.port),
            facts_of_prompt(operation, model, prompt.stream),
        ]
        span.add(names.REQUEST_MAX_TOKENS, prompt.max_tokens)
        span.add(names.CONVERSATION, attempt.session and attempt.session[:_MAX_TEXT])
        span.own.update(sampling_facts(trace.body))
        if self.prompts:
            span.add(names.INPUT_MESSAGES, input_messages(trace.body))
        if attempt.number > 1:
            span.own[names.HTTP_RESEND] = attempt.number - 1
        _note(attempt, span, trace.degraded if is_last else None)
        if is_last:
            _finish(trace, span)
        else:
            span.fail(attempt.error or "unknown")
        return span


def _span_id(given: int = 0) -> bytes:
    return (given or random.getrandbits(64) | 1).to_bytes(8, "big")


def _route(trace: RequestTrace, decision: Decision, server: Span) -> Span:
    index = trace.index
    span = Span(
        names.ROUTE_SPAN,
        INTERNAL,
        server.trace_id,
        _span_id(),
        server.span_id,
        trace.routing_s,
        trace.routed_s,
    )
    roster, matched = decision.roster, decision.matched
    chosen = facts_of_choice(
        decision.policy,
        len(roster.routable),
        roster.candidates[index],
        roster.ranks[index],
        trace.reason,
        decision.grade,
        roster.views[roster.routable[index]],
    )
    span.shared = [chosen]
    span.add(names.QUEUED_S, decision.queued_s)
    most = max(matched)
    costs = decision.costs
    if costs is not None:
        span.own[names.SCORE] = costs[index][3]
    block_size = trace.block_size
    if block_size:
        span.own[names.BLOCK_SIZE] = block_size
        span.own[names.PROMPT_BLOCKS] = trace.prompt_tokens // block_size
        span.own[names.MATCHED_BLOCKS] = matched[index] // block_size
        span.own[names.BEST_MATCHED_BLOCKS] = most // block_size
    if most > matched[index]:
        facts: dict[str, Attribute] = {
            names.MATCHED_TOKENS: matched[index],
            names.BEST_MATCHED_TOKENS: most,
            names.BEST_BACKEND: roster.candidates[matched.index(most)],
        }
        span.note(names.SPILL_OVER_EVENT, trace.routed_s, facts)
    return span


def _retries(attempts: Sequence[Attempt]) -> Iterator[Event]:
    for before, after in pairwise(attempts):
        facts: dict[str, Attribute] = {
            names.RETRY_REASON: before.error or "unknown",
            names.RETRY_FROM: before.backend.name,
            names.BACKEND: after.backend.name,
        }
        yield Event(names.RETRY_EVENT, after.start_s, facts)


def _note(attempt: Attempt, span: Span, degraded: tuple[str, float] | None) -> None:
    """Add what happened under way: the first token, and a view that was wrong."""
    if attempt.first_token_s is not None:
        span.own[names.FIRST_CHUNK_S] = attempt.first_token_s - attempt.start_s
        span.note(names.FIRST_CHUNK_EVENT, attempt.first_token_s, {})
    if degraded is not None:
        facts: dict[str, Attribute] = {
            names.VIEW: degraded[0],
            names.VIEW_DISCOUNT: degraded[1],
        }
        at_s = span.start_s if attempt.discount < 1.0 else span.end_s
        span.note(names.VIEW_DEGRADED_EVENT, at_s, facts)


def _finish(trace: RequestTrace, span: Span) -> None:
    status, error_type, usage = trace.status, trace.error_type, trace.usage
    if status >= 400 or error_type is not None:
        span.fail(error_type or str(status))
    answer = read_answer(b"" if usage is None else usage.ending)
    span.shared.append(facts_of_answer(status, answer.model, answer.finish_reasons))
    if usage is not None:
        span.add(names.RESPONSE_ID, usage.answer_id)
    decision = trace.decision
    if decision is not None and decision.classes is not None:
        _count(decision, span)


def _count(decision: Decision, span: Span) -> None:
    predicted, cached = decision.predicted_tokens, decision.cached_tokens
    span.own[names.INPUT_TOKENS] = decision.prompt_tokens
    span.own[names.PREDICTED_TOKENS] = predicted
    span.add(names.OUTPUT_TOKENS, decision.output_tokens)
    span.add(names.CACHED_TOKENS, cached)
    if cached is not None:
        span.own[names.PREDICTION_ERROR] = predicted - cached
