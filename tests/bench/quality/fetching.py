"""Attention that fetches a few of all tokens: InfiniGen."""

import numpy as np
from attending import F32, Dense, Indices, LayerInputs, Sparse, product

from warmroute.policies.eviction.host_pool import HostPool
from warmroute.policies.eviction.infinigen import InfiniGen

MEASURED_EVERY = 16
"""Positions between two at which the guess is compared with the exact choice."""


class Fetches:
    """What was fetched, over all layers of a run.

    Attributes:
        tokens: Tokens fetched a head and position, each layer a sum.
        positions: Heads times positions that fetched.
        overlaps: Shares of the exact choice, of the same size, that were fetched.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.positions = 0
        self.overlaps: list[float] = []

    @property
    def mean(self) -> float:
        """Tokens fetched a head, layer and position."""
        return self.tokens / max(1, self.positions)

    @property
    def overlap(self) -> float | None:
        """Mean share of the exact choice that was fetched; None if not guessed."""
        return float(np.mean(self.overlaps)) if self.overlaps else None


class Fetching(Dense):
    """Choose the tokens of each position by guessed or exact scores.

    Args:
        rule: Chooses.
        cap: Most tokens fetched a head and position; so many are exact at first.
        kv_heads: KV heads of a sequence, whose rows lie side by side.
        fetches: Counts.
        guessing: Whether the choice goes by guessed scores or by the true ones.
        pool: Capacity and choice of victims of the host pool, None for no limit.
    """

    def __init__(
        self,
        rule: InfiniGen,
        cap: int,
        kv_heads: int,
        fetches: Fetches,
        guessing: bool,
        pool: tuple[int, str] | None = None,
    ) -> None:
        super().__init__()
        self._rule = rule
        self._cap = cap
        self._kv_heads = kv_heads
        self._fetches = fetches
        self._guessing = guessing
        self._parts: F32 | None = None
        self._pool = pool
        self._pools: list[HostPool] = []

    def extend(self, new: LayerInputs) -> F32:
        """Attend token by token to what is fetched, and to the token itself."""
        self.take(new)
        self._take_parts(new)
        return np.concatenate(
            [self.mix(self._shares(new, at)) for at in self.steps(new)], axis=2
        )

    def fork(self, parents: Indices) -> None:
        """Copy each row; a limited pool is not forked."""
        assert self._pool is None
        super().fork(parents)
        if self._parts is not None:
            self._parts = self._parts[parents]

    def _take_parts(self, new: LayerInputs) -> None:
        if self._parts is None:
            self._parts = new.parts
        else:
            self._parts = np.concatenate([self._parts, new.parts], axis=1)
        if self._pool and not self._pools:
            capacity, victims = self._pool
            sequences = len(new.keys) // self._kv_heads
            self._pools = [
                HostPool(victims, self._kv_heads, capacity) for _ in range(sequences)
            ]

    def _shares(self, new: LayerInputs, at: slice) -> F32:
        first = self.first(new) + at.start
        if first + at.stop - at.start <= self._cap:
            for position in range(first, first + at.stop - at.start):
                self._admit(position)
            return self.causal(new, at)
        scores = self.scores(new, at)
        guessed = scores
        if self._guessing and self._parts is not None:
            guessed = product(new.guesses[:, :, at], self._parts[:, : scores.shape[3]])
        sparse = Sparse(scores)
        for step in range(at.stop - at.start):
            for row in range(0, len(scores), self._kv_heads):
                rows = slice(row, row + self._kv_heads)
                length = first + step
                seen = self._choose(guessed[rows, :, step, :length], row)
                is_measured = length > self._cap and step % MEASURED_EVERY == 0
                if guessed is not scores and is_measured:
                    self._compare(seen, scores[rows, :, step, :length])
                itself = np.full((self._kv_heads, 1), length)
                sparse.attend(step, np.concatenate([seen, itself], axis=1), row)
            self._admit(first + step)
        return sparse.shares

    def _choose(self, guessed: F32, row: int) -> Indices:
        length = guessed.shape[2]
        if length <= self._cap:
            return np.broadcast_to(np.arange(length), (self._kv_heads, length))
        if self._pools:
            pool = self._pools[row // self._kv_heads]
            held = pool.positions[:, : pool.count]
            shape = (*guessed.shape[:2], pool.count)
            there = np.broadcast_to(held[:, None], shape)
            slots = self._rule.choose(np.take_along_axis(guessed, there, 2), self._cap)
            pool.fetched(slots)
            chosen = np.take_along_axis(held, slots, axis=1)
        else:
            chosen = self._rule.choose(guessed, self._cap)
        self._fetches.tokens += chosen.size
        self._fetches.positions += len(chosen)
        return chosen

    def _admit(self, position: int) -> None:
        for pool in self._pools:
            pool.admit(position)

    def _compare(self, seen: Indices, scores: F32) -> None:
        count = seen.shape[1]
        exact = InfiniGen(np.inf).choose(scores, count)
        shared = [
            len(np.intersect1d(a, b)) / count for a, b in zip(seen, exact, strict=True)
        ]
        self._fetches.overlaps.append(float(np.mean(shared)))
