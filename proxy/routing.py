"""One request's place on a backend, from the choice to the books' closing."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from warmroute.policies.routing.base import Candidate, Choice, Query
from warmroute.policies.routing.reservation import Reservation
from warmroute.proxy.field import Field
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.http.watch import Usage
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.ledger.histogram import Histogram
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.view.lookup import Lookup
from warmroute.proxy.view.ticket import Ticket

if TYPE_CHECKING:
    from warmroute.proxy.router import Router

_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if code != ord("%"))
_UNTOLD: Final = Usage()

Settled = Callable[[Decision, Lookup, Prompt, str | None, int, float], None]
"""Takes what is known of a request at its end: the record, what its prompt begins
with, the prompt, the session, the leading tokens seen before, and the time. It must
return soon, and raise nothing."""


class Plan:
    """Where a request would go, with nothing reserved.

    Holds for the step in which it was made: afterwards the load is another one.
    """

    __slots__ = ("decision", "field", "lookup", "prompt", "query")

    def __init__(
        self,
        field: Field,
        prompt: Prompt,
        query: Query,
        lookup: Lookup,
        decision: Decision,
    ) -> None:
        self.field = field
        self.prompt = prompt
        self.query = query
        self.lookup = lookup
        self.decision = decision

    def __repr__(self) -> str:
        return f"<Plan {self.decision!r}>"

    @property
    def candidate(self) -> Candidate:
        """Return the candidate that was chosen."""
        return self.field.candidates[self.decision.index]

    @property
    def backend(self) -> Backend:
        """Return the backend of that candidate."""
        return self.field.backends[self.decision.index]

    @property
    def uncached_tokens(self) -> int:
        """Return what it would have to compute."""
        matched = self.lookup.matched[self.decision.index]
        return max(0, self.prompt.num_tokens - matched)

    def repeat_in(self, field: Field) -> Choice | None:
        """Return the same choice, with the costs of then; None in another field."""
        if field is not self.field:
            return None
        decision = self.decision
        return Choice(decision.index, decision.reason, decision.costs)


class Routing:
    """One request's place on a backend: its record, its load, its view entry.

    Attributes:
        query: What was asked of the policy, and when.
        trace: Its marks, where it is sampled, or became unusual.
    """

    __slots__ = (
        "_field",
        "_lookup",
        "_reservation",
        "_router",
        "_seen_tokens",
        "_ticket",
        "backend",
        "decision",
        "prompt",
        "query",
        "rank",
        "trace",
    )

    def __init__(
        self,
        router: "Router",
        field: Field,
        prompt: Prompt,
        query: Query,
        lookup: Lookup,
        decision: Decision,
    ) -> None:
        self._router = router
        self._field = field
        self.prompt = prompt
        self.query = query
        self._lookup = lookup
        self.decision = decision
        self._seen_tokens = lookup.seen_tokens(router.seen)
        self._ticket: Ticket | None = None
        self.trace: RequestTrace | None = None
        self._reservation: Reservation
        self._take(decision.index, query.now)

    def __repr__(self) -> str:
        return f"<Routing {self.decision!r}>"

    def _take(self, index: int, now: float) -> None:
        field, prompt, router = self._field, self.prompt, self._router
        candidate = field.candidates[index]
        self.backend = backend = field.backends[index]
        self.rank = field.ranks[index]
        if backend.is_unsure:
            router.fleet.dispatched(backend)
        num_tokens = prompt.num_tokens
        uncached = num_tokens - self._lookup.matched[index]
        self._reservation = router.load.reserve(
            candidate, num_tokens, uncached if uncached > 0 else 0, now, prompt.stream
        )
        self._ticket = router.view.dispatched(self._lookup, candidate.name, now)

    @property
    def gaps(self) -> Histogram:
        """Return what counts the seconds between the tokens of a stream."""
        flow = self.decision.flow
        assert flow is not None  # the ledger has opened the record
        return flow.inter_token

    def confirmed(self, now: float) -> None:
        """Learn that the answer's first byte came."""
        if self._ticket is not None:
            self._router.view.confirmed(self._ticket, now)

    def first_token(self, now: float) -> None:
        """Learn that the prefill is over."""
        self._reservation.first_token(now)
        if self.trace is not None:
            self.trace.first_token(now)

    def reroute(self, excluded: Collection[str], reason: str, now: float) -> bool:
        """Move to another backend; False when there is none."""
        field = self._field
        left = [
            index
            for index, backend in enumerate(field.backends)
            if backend.name not in excluded
        ]
        self._withdraw(now)
        if not left:
            return False
        choice = self._router.choose(self.query, self._restore(left))
        index = left[choice.index]
        self._router.ledger.reopen(self.decision, index, reason)
        self._take(index, now)
        return True

    def _restore(self, left: list[int]) -> list[Candidate]:
        """Bring back this request's matches: others have been matched since."""
        candidates = []
        for index in left:
            candidate = self._field.candidates[index]
            candidate.matched_tokens = self._lookup.matched[index]
            candidates.append(candidate)
        return candidates

    def again(self, reason: str, now: float) -> None:
        """Take the same backend once more, after a kept connection had died."""
        index = self.decision.index
        self._router.ledger.reopen(self.decision, index, reason)
        self._take(index, now)

    @property
    def abort_id(self) -> str | None:
        """Return the id under which the engine can abort the request."""
        return self.prompt.pin if self.prompt.kind == "generate" else None

    def _withdraw(self, now: float) -> None:
        self._reservation.release(now, learn=False)
        if self._ticket is not None:
            self._router.view.failed(self._ticket)
            self._ticket = None

    def trace_attempt(self, now: float) -> bytes | None:
        """Mark an attempt; returns the traceparent to send, None for the client's."""
        ticket, trace = self._ticket, self.trace
        if trace is None:
            return None
        return trace.attempt(
            self.backend,
            self.prompt,
            self.query.session,
            None if ticket is None else ticket.mirror,
            self.decision.attempts,
            now,
        )

    def attempt_failed(self, reason: str, now: float) -> None:
        """Mark the end of an attempt that brought nothing."""
        if self.trace is not None:
            self.trace.attempt_failed(reason, now)

    def explain_lines(self) -> bytes:
        """Render the x-warmroute-* lines that a client can ask for."""
        decision = self.decision
        return (
            f"x-warmroute-backend: {_header_text(decision.chosen)}\r\n"
            f"x-warmroute-policy: {_header_text(decision.policy)}\r\n"
            f"x-warmroute-matched-tokens: {decision.predicted_tokens}\r\n"
            f"x-warmroute-reason: {_header_text(decision.reason)}\r\n"
        ).encode()

    def settle(
        self,
        status: int,
        now: float,
        duration_s: float,
        ttft_s: float | None,
        usage: Usage | None,
        error: str | None,
    ) -> None:
        """Release the load, teach what the answer tells, close the record."""
        router, ticket = self._router, self._ticket
        answered = error is None and status < 300
        told = _UNTOLD if usage is None else usage
        self._reservation.release(now, told.output_tokens, answered, told.cached_tokens)
        if answered:
            self._learn(told, now)
        elif ticket is not None and ttft_s is None:
            router.view.failed(ticket)
        if ticket is not None and ticket.is_promise:
            router.view.released(ticket, now)
        router.ledger.settle(
            self.decision,
            status,
            duration_s,
            self._seen_tokens,
            told.prompt_tokens,
            told.cached_tokens,
            told.output_tokens,
            ttft_s,
            error,
        )
        if router.recorder is not None:
            router.recorder.add(self.decision, self._lookup, self.query.session)
        if answered and router.on_settled is not None:
            session, seen = self.query.session, self._seen_tokens
            router.on_settled(
                self.decision, self._lookup, self.prompt, session, seen, now
            )

    def _learn(self, usage: Usage, now: float) -> None:
        """Teach the view and the prompts what the engine told."""
        router, prompt, ticket = self._router, self.prompt, self._ticket
        if ticket is not None and usage.cached_tokens is not None:
            router.view.realised(ticket, usage.cached_tokens, now)
            self.decision.difference = ticket.difference
            ticket.record = self.decision
        counted = usage.prompt_tokens
        if counted is not None:
            router.prompts.learn(prompt, counted)
            if (
                router.exact is not None
                and prompt.grade == "exact"
                and prompt.num_tokens != counted
            ):
                router.exact.miscounted(prompt, self.backend.name, counted)
        if prompt.kind == "responses" and usage.answer_id:
            router.pin(usage.answer_id, self.backend.name)


def _header_text(name: str) -> str:
    """Percent-encode what no header can carry, and the percent sign itself."""
    return quote(name, safe=_PLAIN)
