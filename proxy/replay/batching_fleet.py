"""A fleet of engines that batch, behind a production policy."""

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf, isnan
from typing import TYPE_CHECKING

from warmroute.policies.routing.base import Candidate, Policy
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.ledger.tokens import classify
from warmroute.proxy.replay.arrival import Arrival, Workload
from warmroute.proxy.replay.batching_engine import BatchingEngine
from warmroute.proxy.replay.intent import Intent
from warmroute.proxy.replay.memory_view import MemoryView
from warmroute.proxy.replay.play import Progress
from warmroute.proxy.replay.routed import backend_names
from warmroute.proxy.replay.seen_segments import SeenSegments
from warmroute.proxy.replay.sequence import Sequence
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.tally import Tally
from warmroute.proxy.replay.trace import Trace

if TYPE_CHECKING:
    from warmroute.proxy.replay.holding import Holding

_SPEED_CLASS = "replay|batching|"
_LEARNED_S = 60.0  # busy seconds behind what was learned before the replay


class BatchingFleet:
    """Route requests as the proxy does, to engines whose steps are simulated.

    Policy, load and learned speeds are the proxy's own, and learn what it would: when
    a first token came, how long an answer took, what was cached.

    Args:
        policy: Chooses; keeps its state from request to request.
        setting: The fleet.
        trace: What is replayed, with its tree.
        engines: One for each backend.
        view: What the router knows of them.
    """

    __slots__ = (
        "_alive",
        "_block_size",
        "_candidates",
        "_deaths",
        "_engines",
        "_events",
        "_holding",
        "_load",
        "_misjudged",
        "_policy",
        "_seen",
        "_shares_memory",
        "_tree",
        "_view",
    )

    def __init__(
        self,
        policy: Policy,
        setting: Setting,
        trace: Trace,
        engines: list[BatchingEngine],
        view: MemoryView,
    ) -> None:
        assert trace.tree is not None
        self._policy = policy
        self._tree = trace.tree
        self._block_size = trace.block_size
        self._engines = engines
        self._view = view
        self._load = FleetLoad()
        self._candidates = [
            self._load.add(name, _SPEED_CLASS) for name in backend_names(len(engines))
        ]
        if setting.mislearned:
            self._teach(setting)
        self._alive = list(range(len(engines)))
        self._misjudged = dict(setting.misjudged)
        self._deaths = sorted((at, name) for name, at in setting.dies_at.items())
        self._seen = SeenSegments(trace.tree)
        self._events: list[tuple[float, int]] = []
        memories = {id(engine.memory) for engine in engines}
        self._shares_memory = len(memories) < len(engines)
        self._holding: Holding | None = None

    def hold(self, holding: "Holding") -> None:
        """Let *holding* have what comes first."""
        self._holding = holding

    @property
    def candidates(self) -> list[Candidate]:
        """Return what the policy knows of each engine."""
        return self._candidates

    def __repr__(self) -> str:
        return f"<BatchingFleet {self._policy.name}, {len(self._engines)} engines>"

    @property
    def engines(self) -> list[BatchingEngine]:
        """Return the engines."""
        return self._engines

    def play(self, workload: Workload, tally: Tally, progress: Progress) -> None:
        """Serve everything that *workload* gives, and tell *tally*."""
        events, holding = self._events, self._holding
        while True:
            at = events[0][0] if events else inf
            soonest = min(at, workload.next_at)
            if self._deaths and self._deaths[0][0] <= soonest:
                self._bury(*self._deaths.pop(0), tally)
            elif holding is not None and holding.next_at < soonest:
                holding.look()
            elif workload.next_at <= at:
                if workload.next_at == inf:
                    return
                arrival = workload.pop()
                if holding is None:
                    self._dispatch(arrival, arrival.time_s)
                else:
                    holding.admit(arrival, arrival.time_s)
            else:
                _, index = heappop(events)
                if self._engines[index].next_at == at:
                    for sequence in self._advance(index, at):
                        progress()
                        tally.add(self._served(sequence, at), sequence.arrival.time_s)
                        workload.finished(sequence.arrival, at)

    def _teach(self, setting: Setting) -> None:
        """Let rates be known from before the replay, of some engines wrong ones."""
        for index, candidate in enumerate(self._candidates):
            rate = setting.prefill_rate / setting.slow.get(index, 1.0)
            candidate.busy = _LEARNED_S
            candidate.tok = setting.mislearned.get(index, 1.0) * rate * _LEARNED_S

    def catch_up(self, now: float) -> None:
        """Do nothing: steps that end before *now* have ended."""

    def _dispatch(self, arrival: Arrival, now: float) -> None:
        self.send(arrival, self.plan(arrival, now), now)

    def plan(
        self, arrival: Arrival, now: float, earlier: Candidate | None = None
    ) -> Intent:
        """Choose at *now*, *earlier* again if given, and reserve nothing."""
        request = arrival.request
        prompt = request.prompt_tokens
        query = self._load.query(
            prompt, now, request.session, like=self._candidates[self._alive[0]]
        )
        query.blocks, query.block_tokens = request.blocks, self._block_size
        matched = self._match(self._tree.path(request.segment), prompt, now)
        candidates = [self._candidates[one] for one in self._alive]
        if earlier is None:
            place = self._policy.choose(query, candidates).index
        else:
            place = candidates.index(earlier)
        uncached = prompt - matched[place]
        return Intent(self._alive[place], candidates[place], matched, uncached)

    def send(self, arrival: Arrival, intent: Intent, now: float) -> None:
        """Send a request where *intent* says, in the step that made it."""
        request = arrival.request
        index, candidate, matched, uncached = intent
        prompt = request.prompt_tokens
        sequence = Sequence(arrival, self._tree.path(request.segment), self._block_size)
        sequence.backend = index
        sequence.predicted_tokens = prompt - uncached
        sequence.best_tokens = max(matched)
        sequence.seen_tokens = self._seen.enter(sequence.path) * self._block_size
        sequence.reservation = self._load.reserve(candidate, prompt, uncached, now)
        self._view.dispatched(index, request.segment, now)
        engine = self._engines[index]
        engine.submit(sequence, now)
        heappush(self._events, (engine.next_at, index))

    def _match(self, path: list[int], prompt: int, now: float) -> list[int]:
        """Tell every candidate what is cached there, as far as the router knows."""
        size = self._block_size
        most = (prompt - 1) // size * size
        matched = []
        for index in self._alive:
            candidate = self._candidates[index]
            tokens = min(most, self._view.blocks(index, path, now) * size)
            candidate.matched_tokens = tokens
            candidate.kv_usage = self._engines[index].memory.usage
            if index in self._misjudged:
                candidate.rate = self._misjudged[index] * candidate.speed.rate
            matched.append(tokens)
        return matched

    def _advance(self, index: int, now: float) -> Iterable[Sequence]:
        """Let a step of an engine end; returns the requests that ended with it."""
        engine = self._engines[index]
        firsts, done = engine.advance()
        for sequence in firsts:
            assert sequence.reservation is not None
            sequence.reservation.first_token(now)
            self._view.computed(index, sequence.arrival.request.segment, now)
        for sequence in done:
            assert sequence.reservation is not None
            sequence.reservation.release(
                now,
                sequence.arrival.request.output_tokens,
                cached_tokens=sequence.cached_tokens,
            )
            self._view.released(index, sequence.arrival.request.segment, now)
        self._view.stepped(index, now)
        heappush(self._events, (engine.next_at, index))
        if done and self._shares_memory:
            self._wake_others(now)
        return done

    def _wake_others(self, now: float) -> None:
        for index, engine in enumerate(self._engines):
            if engine.next_at == inf:
                engine.wake(now)
                if engine.next_at < inf:
                    heappush(self._events, (engine.next_at, index))

    def _bury(self, now: float, index: int, tally: Tally) -> None:
        """Let an engine die; what had no first token goes elsewhere, as in the proxy.

        Streams that break are lost, and nobody hears of their end.
        """
        self._alive.remove(index)
        self._load.remove(self._candidates[index].name)
        if self._holding is not None:
            self._holding.remove(self._candidates[index].name)
        for sequence in self._engines[index].abandon():
            assert sequence.reservation is not None
            sequence.reservation.release(now, learn=False)
            self._view.released(index, sequence.arrival.request.segment, now)
            if isnan(sequence.first_token_at):
                self._dispatch(sequence.arrival, now)
            else:
                tally.lose()

    def _served(self, sequence: Sequence, now: float) -> Served:
        request, arrival = sequence.arrival.request, sequence.arrival
        prompt, cached = request.prompt_tokens, sequence.cached_tokens or 0
        size = self._block_size
        classes = classify(
            prompt,
            cached,
            sequence.predicted_tokens,
            sequence.best_tokens,
            sequence.seen_tokens,
            (prompt - 1) // size * size,
        )
        tpot_s = None
        if request.output_tokens > 1:
            decode_s = now - sequence.first_token_at
            tpot_s = decode_s / (request.output_tokens - 1)
        return Served(
            sequence.backend,
            prompt,
            cached,
            sequence.first_token_at - arrival.time_s,
            classes,
            tpot_s,
            now - arrival.time_s,
        )
