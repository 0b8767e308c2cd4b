"""Whatever happens to backends and clients, what is held is in one place or gone."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmroute.policies.errors import ClientError
from warmroute.policies.routing.base import Candidate, Choice
from warmroute.proxy.config.policy import QueueConfig
from warmroute.proxy.queue.held import Held
from warmroute.proxy.queue.queue import LOOK_S, HoldQueue

RATE = 1000.0
MOST_HELD = 6
WAIT_S = 20.0


class FakePlan:
    """Stands in for a plan: a place in a field, and what is to be computed."""

    def __init__(self, field: Any, index: int, tokens: int) -> None:
        self.field = field
        self.candidate: Candidate = field.candidates[index]
        self.backend = field.backends[index]
        self.uncached_tokens = tokens
        self.decision = SimpleNamespace(reason="load", index=index, queued_s=None)
        self.lookup = None
        self.query = SimpleNamespace(session=None)

    def repeat_in(self, field: Any) -> Choice | None:
        return Choice(self.decision.index, "load") if field is self.field else None


class FakeRouter:
    """Stands in for a router: the least backlog of the backends that are up."""

    def __init__(self, names: list[str]) -> None:
        self.all = {
            name: SimpleNamespace(
                name=name, state="up", candidates=[Candidate(name, rate=RATE)]
            )
            for name in names
        }
        self.backends = dict(self.all)
        self.ledger = SimpleNamespace(refuse=lambda *_: None)
        self.recorder = None
        self.choices = 0
        self.rebuild()

    @property
    def fleet(self) -> "FakeRouter":
        return self

    def rebuild(self) -> None:
        up = [one for one in self.backends.values() if one.state == "up"]
        self.field = SimpleNamespace(
            backends=up, candidates=[one.candidates[0] for one in up]
        )

    def plan(
        self, head: Any, prompt: int, now: float, earlier: FakePlan | None = None
    ) -> FakePlan:
        choice = None if earlier is None else earlier.repeat_in(self.field)
        if choice is None:
            self.choices += 1
            found = self.field.candidates
            if not found:
                raise ClientError(503, "no_healthy_backend", "none")
            costs = [one.prefill_tokens + one.queued_tokens for one in found]
            choice = Choice(costs.index(min(costs)), "load")
        return FakePlan(self.field, choice.index, prompt)


class FakeClient:
    """Stands in for a connection, and for the port that it came through."""

    is_draining = False
    peer = b"127.0.0.1"

    def __init__(self, machine: "QueueMachine", number: int) -> None:
        self.machine = machine
        self.number = number
        self.deadline = 0.0
        self.clock = lambda: machine.now

    def exchange(self, *request: object, plan: Any) -> str:
        self.machine.sent(self.number, plan)
        return "exchange"

    def hand_over(self, work: object) -> None:
        pass

    def abort(self) -> None:
        raise AssertionError("a request broke")

    def refused(self, error: ClientError) -> None:
        self.machine.ended(self.number, error.code)

    def trace_refusal(self, *request: object) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass

    def finished(self, *, keep_alive: bool) -> None:
        pass


class QueueMachine(RuleBasedStateMachine):
    """Requests come, go and leave while backends do; every one ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.router = FakeRouter(["a", "b", "c"])
        self.config = QueueConfig.model_validate(
            {
                "order": "shortest_uncached",
                "max_wait_s": WAIT_S,
                "max_requests": MOST_HELD,
            }
        )
        self.queue = HoldQueue(
            self.config,
            self.router,  # type: ignore[arg-type]
            lambda: self.now,
            self.call_later,
        )
        self.due: tuple[float, Callable[[], None]] | None = None
        self.held: dict[int, Held] = {}
        self.ends: dict[int, str] = {}
        self.asked = 0

    def call_later(self, seconds: float, look: Callable[[], None]) -> object:
        self.due = (self.now + seconds, look)
        return look

    def sent(self, number: int, plan: FakePlan) -> None:
        assert plan.backend.state == "up"
        assert plan.backend in self.router.backends.values()
        plan.candidate.prefill_tokens += plan.uncached_tokens
        self.ended(number, "sent")

    def ended(self, number: int, how: str) -> None:
        assert number not in self.ends
        self.ends[number] = how
        self.held.pop(number, None)

    @rule(sizes=st.lists(st.sampled_from([0, 600, 2000, 3000]), max_size=5))
    def ask(self, sizes: list[int]) -> None:
        for tokens in sizes:
            self.ask_one(tokens)

    def ask_one(self, tokens: int) -> None:
        number, self.asked = self.asked, self.asked + 1
        client: Any = FakeClient(self, number)
        head = SimpleNamespace(request_id=b"x", keeps_alive=True)
        try:
            work = self.queue.admit(
                client,
                client,
                head,  # type: ignore[arg-type]
                b"",
                tokens,  # type: ignore[arg-type]
                None,
                self.now,
            )
        except ClientError as error:
            self.ended(number, error.code)
            return
        if isinstance(work, Held):
            work.begin()
            self.held[number] = work

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.held[number].client_gone()
        assert self.ends[number] == "client_gone"

    @rule(names=st.sets(st.sampled_from("abc"), min_size=1))
    def compute(self, names: set[str]) -> None:
        for name in names:
            self.router.all[name].candidates[0].prefill_tokens = 0

    @rule(seconds=st.sampled_from([LOOK_S, 0.5, WAIT_S]))
    def wait(self, seconds: float) -> None:
        """Look, a bit late or much; among the same backends nobody is asked again."""
        field, before = self.router.field, self.router.choices
        plans = [one.plan for one in self.held.values()]
        is_same = all(one is not None and one.field is field for one in plans)
        self.now += seconds
        if self.due is not None:
            look, self.due = self.due[1], None
            look()
        assert self.router.choices == before or not is_same

    @rule(
        name=st.sampled_from("abc"),
        what=st.sampled_from(["up", "down", "draining", "gone", "restarted"]),
    )
    def change(self, name: str, what: str) -> None:
        backend = self.router.all[name]
        self.router.backends.pop(name, None)
        if what != "gone":
            self.router.backends[name] = backend
            backend.state = "up" if what == "restarted" else what
        if what == "restarted":
            backend.candidates = [Candidate(name, rate=RATE)]
        self.router.rebuild()

    @rule()
    def reload(self) -> None:
        self.queue.configure(self.config)

    @invariant()
    def everyone_is_held_or_has_ended(self) -> None:
        assert len(self.queue) == len(self.held) <= MOST_HELD
        assert len(self.held) + len(self.ends) == self.asked
        assert not self.held or self.due is not None

    @invariant()
    def what_is_held_is_counted_at_its_backend(self) -> None:
        total = sum(one.uncached_tokens for one in self.held.values())
        lines = self.queue.facts()["backends"].values()
        assert sum(line["tokens"] for line in lines) == total
        for backend in self.router.all.values():
            candidate = backend.candidates[0]
            assert candidate.queued_tokens == candidate.held_tokens >= 0

    def teardown(self) -> None:
        """Everyone who still waits is told in the end."""
        self.queue.release_all()
        if self.due is not None:
            self.due[1]()
        assert not self.held
        assert len(self.ends) == self.asked


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40)
