"""Simulated engines behind a real policy and real learning, on a clock of its own."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

from warmroute.policies.routing.base import Policy, build
from warmroute.policies.routing.load import FleetLoad

Spoil = Callable[[int, float], float]
"""Takes the number and the true seconds of a prefill; returns what it takes instead."""


class SimulatedFleet:
    """One FIFO prefill server a backend, with true rates that a test may change."""

    def __init__(self, rates: dict[str, float], seed: int = 0) -> None:
        self.rates = rates
        self.rng = Random(seed)
        self.policy: Policy = build("expected_ttft", rng=Random(seed))
        self.load = FleetLoad()
        self.candidates = [self.load.add(name, "m|vllm|gpu") for name in rates]
        self.now = 1000.0
        self.served: list[tuple[str, int]] = []
        self.spoil: Spoil = lambda _, seconds: seconds
        self._free = dict.fromkeys(rates, 0.0)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = count()

    def run(self, requests: int, load: float) -> None:
        """Serve Poisson arrivals at a share of what all servers can do together."""
        mean_s = 2000 / (load * sum(self.rates.values()))
        for _ in range(requests):
            self.now += self.rng.expovariate(1 / mean_s)
            self.advance(self.now)
            self.serve(round(self.rng.uniform(500, 3500)))

    def serve(self, tokens: int) -> None:
        now, first = self.now, self.candidates[0]
        query = self.load.query(tokens, now, like=first)
        chosen = self.candidates[self.policy.choose(query, self.candidates).index]
        name = chosen.name
        reservation = self.load.reserve(chosen, tokens, tokens, now)
        seconds = self.spoil(len(self.served), tokens / self.rates[name])
        done = max(now, self._free[name]) + seconds
        self._free[name] = done
        self.served.append((name, tokens))
        self._at(done, reservation.first_token)
        self._at(done + 1.0, lambda at: reservation.release(at, 40))

    def advance(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            at, _, act = heappop(self._events)
            act(at)

    def share(self, name: str, last: int) -> float:
        """Return the share that *name* had in the tokens of the *last* requests."""
        newest = self.served[-last:]
        return sum(t for n, t in newest if n == name) / sum(t for _, t in newest)

    def rate(self, name: str) -> float:
        self.load.refresh(self.now)
        return self.load.candidates[name].rate

    def _at(self, at: float, act: Callable[[float], None]) -> None:
        heappush(self._events, (at, next(self._number), act))
