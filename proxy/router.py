"""From a prompt to a reserved backend, in one step without an await.

Choice, reservation and the view's speculative entry belong together: between them no
other request may run, or a burst would see the same idle backend many times over.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.seen import SeenBlocks
from warmroute.policies.routing.base import Candidate, Choice, Costs, Policy, Query
from warmroute.policies.routing.least_requests import LeastRequests
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.field import Field
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.prompt import Prompt, PromptReader
from warmroute.proxy.prompt.pending import Exactness
from warmroute.proxy.records.recorder import Recorder
from warmroute.proxy.routing import Plan, Routing, Settled
from warmroute.proxy.shadow import Shadow
from warmroute.proxy.view import View
from warmroute.proxy.view.lookup import Lookup

logger = logging.getLogger(__name__)

_MAX_PINS: Final = 65536
_RESPONSES_PATH: Final = "/v1/responses/"


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
        self.exact: Exactness | None = None
        self.recorder: Recorder | None = None
        self.on_settled: Settled | None = None
        self.shadow: Shadow | None = None
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
        return self._open(field, prompt, query, lookup, decision)

    def plan(
        self,
        head: RequestHead,
        prompt: Prompt,
        now: float,
        earlier: Plan | None = None,
    ) -> Plan:
        """Choose as `route` does and reserve nothing; raises as `route` does.

        Args:
            head: Of the request.
            prompt: Of it.
            now: Monotonic seconds.
            earlier: A plan of the same request, whose choice holds while there are
                the same backends; only what is cached is looked up anew.
        """
        field = self._field(prompt.model)
        choice = None if earlier is None else earlier.repeat_in(field)
        return Plan(field, prompt, *self._decide(head, prompt, field, now, choice))

    def dispatch(self, plan: Plan) -> Routing:
        """Reserve what *plan* says, in the step that made it, and open the record."""
        return self._open(
            plan.field, plan.prompt, plan.query, plan.lookup, plan.decision
        )

    def _open(
        self,
        field: Field,
        prompt: Prompt,
        query: Query,
        lookup: Lookup,
        decision: Decision,
    ) -> Routing:
        shadow = self.shadow
        if shadow is not None and decision.reason != "pin":
            shadow.judge(query, field.candidates, decision)
        routing = Routing(self, field, prompt, query, lookup, decision)
        self.ledger.open(decision, self._clock() - query.now)
        if prompt.pin is not None and prompt.kind == "generate":
            self.pin(prompt.pin, decision.chosen)
        return routing

    def read(self, head: RequestHead, body: bytes) -> Prompt:
        """Read the prompt of a request; never raises."""
        return self.prompts.read(
            head.path, head.content_type, head.content_encoding, body
        )

    def explain(self, head: RequestHead, prompt: Prompt) -> Decision:
        """Decide as for a real request, and send, reserve and record nothing.

        Raises:
            ClientError: As for a real request.
        """
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
            if costs is None or (
                type(costs) is Costs and len(costs.flat) == 4 * len(candidates)
            ):
                pass  # of the form that the default policy gives: no more to ask
            elif len(costs) != len(candidates):
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
        self,
        head: RequestHead,
        prompt: Prompt,
        field: Field,
        now: float,
        choice: Choice | None = None,
    ) -> tuple[Query, Lookup, Decision]:
        candidates = field.candidates
        session = head.session or prompt.session
        lookup = self.view.match(prompt, candidates, prompt.bytes_per_token, now)
        query = self.load.query(prompt.num_tokens, now, session, candidates[0])
        lookup.describe(query)
        if choice is None:
            if prompt.pin is not None or head.path.startswith(_RESPONSES_PATH):
                choice = self._pinned(head, prompt, field, lookup)
            if choice is None:
                choice = self.choose(query, candidates)
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
            prompt.bytes_per_token,
        )
        return query, lookup, decision

    def _pinned(
        self, head: RequestHead, prompt: Prompt, field: Field, lookup: Lookup
    ) -> Choice | None:
        key = prompt.pin
        if head.path.startswith(_RESPONSES_PATH):
            key = head.path[len(_RESPONSES_PATH) :].partition("/")[0]
        elif prompt.kind == "generate":
            return None
        if key is None:
            return None
        name, matched = self._pins.get(key), lookup.matched
        found = -1
        for index, backend in enumerate(field.backends):
            if backend.name == name and (found < 0 or matched[index] > matched[found]):
                found = index
        return None if found < 0 else Choice(found, "pin")

    def _field(self, model: str | None) -> Field:
        if (hear := self.view.hear) is not None:
            hear()  # before the choice begins: an engine may have started anew
        backends = self.fleet.routable(model)
        field = self._fields.get(model)
        if field is None or field.routable is not backends:
            if len(self._fields) > 1024:
                self._fields.clear()
            field = Field(backends, list(self.fleet.backends.values()), self.view)
            self._fields[model] = field
        return field


def explained_head(path: str, headers: Mapping[str, str]) -> RequestHead:
    """Return the head of a request that is only to be explained."""
    named = {"host": "explain", "content-type": "application/json", **headers}
    pairs = [
        (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
        for name, value in named.items()
        if name not in ("content-length", "transfer-encoding")
    ]
    return RequestHead(b"POST", path.encode("latin-1", "replace"), "1.1", pairs)


def _lower(lookup: Lookup) -> list[tuple[int, int]] | None:
    if any(lookup.host) or any(lookup.disk):
        return list(zip(lookup.host, lookup.disk, strict=True))
    return None
