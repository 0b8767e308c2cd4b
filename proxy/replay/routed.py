"""A fleet of simulated engines behind a production policy."""

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

from warmroute.policies.routing.base import Candidate, Policy
from warmroute.policies.routing.load import FleetLoad, Reservation
from warmroute.proxy.replay.block_cache import BlockCache
from warmroute.proxy.replay.history import History
from warmroute.proxy.replay.intent import Intent
from warmroute.proxy.replay.known_caches import KnownCaches
from warmroute.proxy.replay.prefill_server import DECODE_TOKEN_S, PrefillServer
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import TraceRequest

_SPEED_CLASS = "replay|fifo|"


class RoutedFleet:
    """Route requests as the proxy does: policy, load and ledger are its own.

    The view is what the engines have, unless the setting says otherwise. Waits are
    known exactly: the rates are told, and the head of a queue may show all of its
    progress. Only times come from here.

    Args:
        policy: Chooses; keeps its state from request to request.
        setting: The engines.
        block_size: Tokens a block.
        seed: Of the draws of the view.
    """

    __slots__ = (
        "_believed",
        "_block_tokens",
        "_caches",
        "_candidates",
        "_events",
        "_history",
        "_known",
        "_load",
        "_num_events",
        "_policy",
        "_rate",
        "_servers",
    )

    def __init__(
        self, policy: Policy, setting: Setting, block_size: int, seed: int = 0
    ) -> None:
        self._policy = policy
        self._rate = setting.prefill_rate
        self._block_tokens = block_size
        self._load = FleetLoad()
        names = backend_names(setting.backends)
        self._candidates = [self._load.add(name, _SPEED_CLASS) for name in names]
        speed = self._candidates[0].speed
        speed.prior = speed.rate = self._rate
        self._caches = [BlockCache(block_size, setting.capacity_tokens) for _ in names]
        rates = [self._rate / setting.slow.get(at, 1.0) for at in range(len(names))]
        self._servers = [PrefillServer(rate) for rate in rates]
        self._believed = [
            rate * setting.misjudged.get(at, 1.0) for at, rate in enumerate(rates)
        ]
        self._known = KnownCaches(
            self._caches,
            setting.view,
            block_size,
            setting.capacity_tokens,
            Random(f"events {seed}"),
        )
        self._history = History(block_size)
        self._events: list[tuple[float, int, Reservation, int | None]] = []
        self._num_events = 0

    def __repr__(self) -> str:
        return f"<RoutedFleet {self._policy.name}, {len(self._candidates)} engines>"

    @property
    def candidates(self) -> list[Candidate]:
        """Return what the policy knows of each engine."""
        return self._candidates

    def serve(self, request: TraceRequest, now: float) -> Served:
        """Route *request*, which comes at *now*, not before those served so far.

        O(engines + blocks).
        """
        self.catch_up(now)
        return self.send(request, self.plan(request, now), now)

    def plan(
        self, request: TraceRequest, now: float, earlier: Candidate | None = None
    ) -> Intent:
        """Choose an engine at *now*, to which all is caught up; reserve nothing.

        *earlier* is chosen again, if given.
        """
        prompt = request.prompt_tokens
        known = self._known.cached_tokens(request, now)
        query = self._load.query(prompt, now, request.session, like=self._candidates[0])
        query.blocks, query.block_tokens = request.blocks, self._block_tokens
        self._tell(known)
        if earlier is None:
            index = self._policy.choose(query, self._candidates).index
        else:
            index = self._candidates.index(earlier)
        return Intent(index, self._candidates[index], known, prompt - known[index])

    def send(self, request: TraceRequest, intent: Intent, now: float) -> Served:
        """Send *request* where *intent* says; its times count from *now*."""
        index, candidate, known, uncached = intent
        prompt = request.prompt_tokens
        cached = self._caches[index].cached_tokens(request)
        reservation = self._load.reserve(candidate, prompt, uncached, now)
        ttft_s = self._servers[index].serve(prompt - cached, now)
        self._caches[index].admit(request)
        self._known.admitted(index, request, now)
        output = request.output_tokens
        self._plan(now + ttft_s, reservation, None)
        end_s = ttft_s + output * DECODE_TOKEN_S
        self._plan(now + end_s, reservation, output)
        classes = self._history.enter(request, cached, max(known), known[index])
        return Served(index, prompt, cached, ttft_s, classes, DECODE_TOKEN_S, end_s)

    def _tell(self, cached: Sequence[int]) -> None:
        """Tell the policy what is so, where the proxy would have to guess."""
        for candidate, tokens, rate in zip(
            self._candidates, cached, self._believed, strict=True
        ):
            candidate.matched_tokens = tokens
            candidate.rate = rate
            if candidate.waiting:
                # A policy believes in 95 % of the head at most; of twice it, in all.
                head = next(iter(candidate.waiting))
                candidate.head_tokens = 2 * head.uncached_tokens

    def _plan(self, at: float, reservation: Reservation, output: int | None) -> None:
        """Note a first token, or the end of an answer of *output* tokens."""
        self._num_events += 1
        heappush(self._events, (at, self._num_events, reservation, output))

    def catch_up(self, now: float) -> None:
        """Let everything happen that happens until *now*."""
        events = self._events
        while events and events[0][0] <= now:
            at, _, reservation, output = heappop(events)
            if output is None:
                reservation.first_token(at)
            else:
                reservation.release(at, output)


def backend_names(count: int) -> list[str]:
    """Name *count* engines."""
    return [f"engine-{number}" for number in range(count)]
