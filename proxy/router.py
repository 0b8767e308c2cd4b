"""From a prompt to a reserved backend, in one step without an await.

Choice, reservation and the view's speculative entry belong together: between them no
other request may run, or a burst would see the same idle backend many times over.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.seen import SeenBlocks
from warmroute.policies.routing.base import Candidate, Choice, Policy, Query
from warmroute.policies.routing.least_requests import LeastRequests
from warmroute.policies.routing.load import FleetLoad, Reservation
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.watch import Usage
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.prompt import Prompt, PromptReader
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.view import View
from warmroute.proxy.view.lookup import Lookup, Ticket

logger = logging.getLogger(__name__)

_MAX_PINS = 65536
_RESPONSES_PATH = "/v1/responses/"


class Field:
    """The routable backends of one model, as the policy and the records see them."""

    __slots__ = ("backends", "candidates", "roster")

    def __init__(
        self, backends: list[Backend], every: Sequence[Backend], view: View
    ) -> None:
        positions = {backend.name: at for at, backend in enumerate(every)}
        self.backends = backends
        self.candidates = [backend.candidate for backend in backends]
        self.roster = Roster(
            [backend.name for backend in every],
            [backend.state for backend in every],
            [str(view.facts(backend.name)["source"]) for backend in every],
            [positions[backend.name] for backend in backends],
        )


class Routing:
    """One request's place on a backend: its record, its load, its view entry."""

    __slots__ = (
        "_field",
        "_lookup",
        "_prompt",
        "_query",
        "_reservation",
        "_router",
        "_seen_tokens",
        "_ticket",
        "backend",
        "decision",
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
        self._prompt = prompt
        self._query = query
        self._lookup = lookup
        self.decision = decision
        self._seen_tokens = lookup.seen_tokens(router.seen)
        self._ticket: Ticket | None = None
        self._reservation: Reservation
        self._take(decision.index, query.now)

    def __repr__(self) -> str:
        return f"<Routing {self.decision!r}>"

    def _take(self, index: int, now: float) -> None:
        field, prompt, router = self._field, self._prompt, self._router
        candidate = field.candidates[index]
        self.backend = field.backends[index]
        router.fleet.dispatched(self.backend)
        self._reservation = router.load.reserve(
            candidate,
            prompt.num_tokens,
            max(0, prompt.num_tokens - self._lookup.matched[index]),
            now,
            prompt.stream,
        )
        self._ticket = router.view.dispatched(self._lookup, candidate.name, now)

    def next_token(self, gap_s: float) -> None:
        """Learn of a further token of the stream, and the gap before it."""
        flow = self.decision.flow
        if flow is not None:
            flow.inter_token.observe(gap_s)

    def confirmed(self, now: float) -> None:
        """Learn that the answer's first byte came."""
        if self._ticket is not None:
            self._router.view.confirmed(self._ticket, now)

    def first_token(self, now: float) -> None:
        """Learn that the prefill is over."""
        self._reservation.first_token(now)

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
        choice = self._router.choose(self._query, self._restore(left))
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
        return self._prompt.pin if self._prompt.kind == "generate" else None

    def _withdraw(self, now: float) -> None:
        self._reservation.release(now, learn=False)
        if self._ticket is not None:
            self._router.view.failed(self._ticket)
            self._ticket = None

    def trace_attempt(self, trace: RequestTrace, now: float) -> bytes:
        """Open the CLIENT span of an attempt; returns its traceparent."""
        backend, prompt = self.backend, self._prompt
        return trace.attempt(
            self.decision,
            now,
            kind=prompt.kind,
            engine=backend.engine,
            host=backend.host,
            port=backend.port,
            stream=prompt.stream,
            max_tokens=prompt.max_tokens,
            session=self._query.session,
        ).encode()

    def explain_lines(self) -> bytes:
        """Render the x-warmroute-* lines that a client can ask for."""
        decision = self.decision
        return (
            f"x-warmroute-backend: {decision.chosen}\r\n"
            f"x-warmroute-policy: {decision.policy}\r\n"
            f"x-warmroute-matched-tokens: {decision.predicted_tokens}\r\n"
            f"x-warmroute-reason: {decision.reason}\r\n"
        ).encode("latin-1", "replace")

    def settle(
        self,
        status: int,
        now: float,
        *,
        duration_s: float,
        ttft_s: float | None,
        usage: Usage | None,
        error: str | None,
    ) -> None:
        """Release the load, teach what the answer tells, close the record."""
        router, prompt, ticket = self._router, self._prompt, self._ticket
        usage = usage or Usage()
        answered = error is None and status < 300
        self._reservation.release(
            now, usage.output_tokens, answered, usage.cached_tokens
        )
        if ticket is not None:
            if answered and usage.cached_tokens is not None:
                router.view.realised(ticket, usage.cached_tokens, now)
            elif not answered and ttft_s is None:
                router.view.failed(ticket)
        if answered and usage.prompt_tokens is not None:
            router.prompts.learn(prompt, usage.prompt_tokens)
        if answered and usage.answer_id and prompt.kind == "responses":
            router.pin(usage.answer_id, self.backend.name)
        router.ledger.settle(
            self.decision,
            status=status,
            duration_s=duration_s,
            seen_tokens=self._seen_tokens,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            ttft_s=ttft_s,
            error=error,
        )


class Router:
    """Choose a backend for each request, and keep the books of the choice."""

    def __init__(
        self,
        fleet: Fleet,
        view: View,
        load: FleetLoad,
        policy: Policy,
        prompts: PromptReader,
        ledger: Ledger,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.fleet = fleet
        self.view = view
        self.load = load
        self.policy = policy
        self.prompts = prompts
        self.ledger = ledger
        self._fallback = LeastRequests()
        self.seen = SeenBlocks()
        self._clock = clock
        self._wall = wall
        self._fields: dict[str | None, Field] = {}
        self._pins: OrderedDict[str, str] = OrderedDict()
        self._failed_policy: Policy | None = None

    def __repr__(self) -> str:
        return f"<Router policy={self.policy.name} backends={len(self.fleet.backends)}>"

    def route(self, head: RequestHead, prompt: Prompt, now: float) -> Routing:
        """Choose, reserve, and open the record.

        Raises:
            ClientError: 404 for an unknown model, 503 when no backend is routable.
        """
        field = self._field(prompt.model)
        query, lookup, decision = self._decide(head, prompt, field, now)
        routing = Routing(self, field, prompt, query, lookup, decision)
        self.ledger.open(decision, self._clock() - now)
        if prompt.pin is not None and prompt.kind == "generate":
            self.pin(prompt.pin, decision.chosen)
        return routing

    def explain(self, path: str, headers: Mapping[str, str], body: bytes) -> Decision:
        """Decide as for a real request, and send, reserve and record nothing.

        Raises:
            ClientError: As for a real request.
        """
        named = {"host": "explain", "content-type": "application/json", **headers}
        pairs = [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in named.items()
            if name not in ("content-length", "transfer-encoding")
        ]
        head = RequestHead(b"POST", path.encode("latin-1", "replace"), "1.1", pairs)
        prompt = self.prompts.read(
            head.path,
            head.fields[b"content-type"],
            head.fields.get(b"content-encoding", b""),
            body,
        )
        field = self._field(prompt.model)
        return self._decide(head, prompt, field, self._clock())[2]

    def pin(self, key: str, backend: str) -> None:
        """Remember that only *backend* knows what *key* names."""
        pins = self._pins
        pins[key] = backend
        pins.move_to_end(key)
        if len(pins) > _MAX_PINS:
            pins.popitem(last=False)

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Ask the policy; one that fails is counted and falls back by load."""
        try:
            choice = self.policy.choose(query, candidates)
            costs = choice.costs
            if costs is not None and len(costs) != len(candidates):
                raise PolicyError(
                    f"policy {self.policy.name} gave {len(costs)} costs for "
                    f"{len(candidates)} candidates"
                )
            candidates[choice.index]
            return choice
        except Exception:
            self.ledger.policy_failed(self.policy.name)
            if self._failed_policy is not self.policy:
                self._failed_policy = self.policy
                logger.exception("policy_failed", extra={"policy": self.policy.name})
            index = self._fallback.choose(query, candidates).index
            return Choice(index, "fallback")

    def _decide(
        self, head: RequestHead, prompt: Prompt, field: Field, now: float
    ) -> tuple[Query, Lookup, Decision]:
        session = head.session or prompt.session
        lookup = self.view.match(prompt, field.candidates, prompt.bytes_per_token, now)
        query = self.load.query(prompt.num_tokens, now, session, field.candidates[0])
        choice = self._pinned(head, prompt, field) or self.choose(
            query, field.candidates
        )
        decision = Decision(
            head.request_id.decode(),
            self._wall(),
            head.path,
            prompt.model,
            prompt.grade,
            prompt.num_tokens,
            self.policy.name,
            field.roster,
            lookup.matched,
            choice.index,
            choice.reason,
            choice.costs,
            _lower(lookup) if lookup.host else None,
        )
        return query, lookup, decision

    def _pinned(self, head: RequestHead, prompt: Prompt, field: Field) -> Choice | None:
        key = prompt.pin
        if head.path.startswith(_RESPONSES_PATH):
            key = head.path[len(_RESPONSES_PATH) :].partition("/")[0]
        elif prompt.kind == "generate":
            return None
        if key is None:
            return None
        name = self._pins.get(key)
        for index, backend in enumerate(field.backends):
            if backend.name == name:
                return Choice(index, "pin")
        return None

    def _field(self, model: str | None) -> Field:
        backends = self.fleet.routable(model)
        field = self._fields.get(model)
        if field is None or field.backends is not backends:
            if len(self._fields) > 1024:
                self._fields.clear()
            field = Field(backends, list(self.fleet.backends.values()), self.view)
            self._fields[model] = field
        return field


def _lower(lookup: Lookup) -> list[tuple[int, int]] | None:
    if any(lookup.host) or any(lookup.disk):
        return list(zip(lookup.host, lookup.disk, strict=True))
    return None
