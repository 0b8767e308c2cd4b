"""Count the load of every backend from our own requests alone.

The counts are kept by reservations: what `FleetLoad.reserve` adds, the
reservation takes away again, once, whatever happens in between. A reservation
holds the `Candidate` object itself, so that the end of a request whose backend
was removed or restarted meanwhile changes an object that nobody reads any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp2
from types import MappingProxyType
from typing import Final

from warmroute.policies.routing.base import Candidate, Query
from warmroute.policies.routing.rates import Pool, SpeedClass
from warmroute.policies.routing.reservation import (
    HALF_LIFE_S,
    Reservation,
    presume_prefilled,
    shrunk_rate,
)
from warmroute.policies.routing.samples import SHRINK_S, Samples, shrinks

__all__ = ["FleetLoad", "Reservation"]

_REFRESH_S: Final = 1.0
_MAX_IDLE_CLASSES: Final = 256


class FleetLoad:
    """The load and speed of all backends; the router's only source of both.

    Not for several threads. Every method is O(1) but for a refresh of all rates,
    O(candidates) once a second, which the first `query` or `reserve` of that
    second does.
    """

    __slots__ = ("_candidates", "_classes", "_next_refresh", "_pools", "candidates")

    def __init__(self) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._classes: dict[str, SpeedClass] = {}
        self._pools: dict[str, Pool] = {}
        self._next_refresh = 0.0
        self.candidates: Mapping[str, Candidate] = MappingProxyType(self._candidates)

    def __repr__(self) -> str:
        requests = sum(one.requests for one in self._candidates.values())
        return f"<FleetLoad {len(self._candidates)} candidates, {requests} requests>"

    def add(self, name: str, speed_class: str = "") -> Candidate:
        """Start counting for a backend, from nothing, and return its candidate.

        Args:
            name: Name of the backend; one that is there already is replaced.
            speed_class: ``model|engine|hardware``. Backends with one class share
                what is learned of speed, those with one model share utilisation
                and answer lengths.
        """
        self.remove(name)
        candidate = Candidate(name)
        self._candidates[name] = candidate
        self.classify(candidate, speed_class)
        return candidate

    def remove(self, name: str) -> None:
        """Stop counting for a backend; its reservations may still be released."""
        candidate = self._candidates.pop(name, None)
        if candidate is not None:
            candidate.speed.remember_rate()
            self._next_refresh = 0.0

    def classify(self, candidate: Candidate, speed_class: str) -> None:
        """Move a backend into a class, once model and engine are known."""
        candidate.speed = speed = self._speed_class(speed_class)
        candidate.tok = candidate.busy = 0.0
        candidate.samples = Samples()
        candidate.shrink_s = SHRINK_S
        candidate.rate = speed.rate
        self._next_refresh = 0.0

    def query(
        self,
        prompt_tokens: int,
        now: float,
        session: str | None = None,
        like: Candidate | None = None,
    ) -> Query:
        """Describe a request for a policy.

        Args:
            prompt_tokens: Length of the prompt, estimated or exact.
            now: Monotonic seconds.
            session: Key for affinity.
            like: Any of the candidates, to say whose utilisation counts; without
                it, that of the busiest model.
        """
        if now >= self._next_refresh:
            self.refresh(now)
        pool = like.speed.pool if like is not None else self._busiest(now)
        return Query(
            prompt_tokens,
            now,
            session,
            pool.rho(now),
            pool.output_tokens,
            depth_tokens=pool.depth_tokens,
        )

    def reserve(
        self,
        candidate: Candidate,
        prompt_tokens: int,
        uncached_tokens: int,
        now: float,
        streamed: bool = True,
    ) -> Reservation:
        """Add the load of a request at once, in the step that chose *candidate*.

        Args:
            candidate: Where the request goes.
            prompt_tokens: Length of the whole prompt.
            uncached_tokens: The part of it that has to be computed there.
            now: Monotonic seconds.
            streamed: Whether the answer will show its first token.
        """
        if now >= self._next_refresh:
            self.refresh(now)
        pool = candidate.speed.pool
        pool.add_work(uncached_tokens, now)
        pool.learn_depth(uncached_tokens, prompt_tokens - uncached_tokens)
        if candidate.waiting:
            presume_prefilled(candidate, now)
        return Reservation(candidate, prompt_tokens, uncached_tokens, now, streamed)

    def refresh(self, now: float) -> None:
        """Bring the rates of all classes, backends and pools up to date."""
        self._next_refresh = now + _REFRESH_S
        members: dict[SpeedClass, list[Candidate]] = {}
        for candidate in self._candidates.values():
            members.setdefault(candidate.speed, []).append(candidate)
        for pool in self._pools.values():
            pool.rate = 0.0
        for speed, group in members.items():
            _forget_history(group)
            _learn_class(speed, group)
            _tell_apart(group, now)
            speed.line.fit()
            for candidate in group:
                candidate.rate = shrunk_rate(candidate, now)
                speed.pool.rate += candidate.rate
                presume_prefilled(candidate, now)

    def _busiest(self, now: float) -> Pool:
        pools = self._pools.values()
        return max(pools, key=lambda pool: pool.rho(now), default=Pool())

    def _speed_class(self, name: str) -> SpeedClass:
        speed = self._classes.get(name)
        if speed is None:
            self._prune()
            model = name.partition("|")[0]
            pool = self._pools.setdefault(model, Pool())
            speed = self._classes[name] = SpeedClass(name, pool)
        return speed

    def _prune(self) -> None:
        if len(self._classes) < _MAX_IDLE_CLASSES:
            return
        used = {one.speed.name for one in self._candidates.values()}
        self._classes = {k: v for k, v in self._classes.items() if k in used}
        models = {name.partition("|")[0] for name in self._classes}
        self._pools = {k: v for k, v in self._pools.items() if k in models}


def _learn_class(speed: SpeedClass, group: Sequence[Candidate]) -> None:
    """Sum up the members, each faded by how long it has been silent.

    Silence counts from the newest sample of the class, so that a night without
    traffic fades nobody.
    """
    newest = max(one.learned_at for one in group)
    shares = [exp2((one.learned_at - newest) / HALF_LIFE_S) for one in group]
    speed.set_members(
        sum(share * one.tok for share, one in zip(shares, group, strict=True)),
        sum(share * one.busy for share, one in zip(shares, group, strict=True)),
    )


def _forget_history(group: Sequence[Candidate]) -> None:
    """Start the sums of those anew whose speed has changed."""
    for one in group:
        samples = one.samples
        samples.sum_up()
        if samples.has_changed(one.tok, one.busy):
            one.tok, one.busy = samples.tokens, samples.busy_s


def _tell_apart(group: Sequence[Candidate], now: float) -> None:
    """Trust the own samples of those whose speed is not that of the class."""
    if len(group) > 1:
        fades = [exp2((one.learned_at - now) / HALF_LIFE_S) for one in group]
        known = shrinks([one.samples for one in group], fades)
        for one, shrink_s in zip(group, known, strict=True):
            one.shrink_s = shrink_s
