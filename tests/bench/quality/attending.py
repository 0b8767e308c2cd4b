"""Attention of one layer under a token budget, over a text that is given.

The queries of all positions are known (teacher forcing), so scores and outputs are
one product each; only *which* tokens a position sees is decided step by step, by the
same rules as in the engine.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from warmroute.policies.eviction.kept_tokens import KeptTokens
from warmroute.policies.eviction.token_base import TokenRule

F32 = NDArray[np.float32]
Indices = NDArray[np.int64]
STEP = 64
"""Positions whose scores are computed at a time."""


class LayerInputs:
    """What one layer gives for some new tokens of all rows.

    Args:
        queries: ``[rows, group, n, d]`` after RoPE, scaled.
        keys: ``[rows, n, d]`` after RoPE.
        values: ``[rows, n, d]``.
        guesses: ``[rows, group, n, part]``: queries guessed from the layer before.
        parts: ``[rows, n, part]`` of the keys, to meet the guesses.
    """

    def __init__(
        self,
        queries: F32,
        keys: F32,
        values: F32,
        guesses: F32,
        parts: F32,
    ) -> None:
        self.queries = queries
        self.keys = keys
        self.values = values
        self.guesses = guesses
        self.parts = parts


class Attending(Protocol):
    """The attention of one layer and its memory."""

    def extend(self, new: LayerInputs) -> F32:
        """Attend with new tokens, and take them in: ``[rows, group, n, d]``."""

    def fork(self, parents: Indices) -> None:
        """Go on with new rows, each a copy of the one that *parents* names."""


class Dense:
    """Full causal attention; what the others build on."""

    def __init__(self) -> None:
        self.keys: F32 | None = None
        self.values: F32 | None = None
        self.length = 0

    def extend(self, new: LayerInputs) -> F32:
        """Attend to everything so far."""
        self.take(new)
        return np.concatenate(
            [self.mix(self.causal(new, at)) for at in self.steps(new)], axis=2
        )

    def fork(self, parents: Indices) -> None:
        """Copy each row's keys and values."""
        assert self.keys is not None
        assert self.values is not None
        self.keys = self.keys[parents]
        self.values = self.values[parents]

    def take(self, new: LayerInputs) -> None:
        """Append the new keys and values."""
        if self.keys is None or self.values is None:
            self.keys, self.values = new.keys, new.values
        else:
            self.keys = np.concatenate([self.keys, new.keys], axis=1)
            self.values = np.concatenate([self.values, new.values], axis=1)
        self.length = self.keys.shape[1]

    def steps(self, new: LayerInputs) -> list[slice]:
        """Cut the new tokens into steps that fit into memory."""
        count = new.queries.shape[2]
        return [slice(at, min(at + STEP, count)) for at in range(0, count, STEP)]

    def first(self, new: LayerInputs) -> int:
        """Return the position of the first new token."""
        return self.length - new.queries.shape[2]

    def scores(self, new: LayerInputs, at: slice) -> F32:
        """Return ``[rows, group, step, seen]`` without a mask."""
        assert self.keys is not None
        return product(new.queries[:, :, at], self.keys[:, : self.first(new) + at.stop])

    def causal(self, new: LayerInputs, at: slice) -> F32:
        """Return the probabilities of a step when nothing is evicted."""
        scores = self.scores(new, at)
        width = at.stop - at.start
        later = np.triu(np.ones((width, width), bool), k=1)
        scores[..., -width:][..., later] = -np.inf
        return softmax(scores)

    def mix(self, shares: F32) -> F32:
        """Return the values weighted by ``[rows, group, n, seen]``."""
        assert self.values is not None
        rows, group, count, seen = shares.shape
        flat = shares.reshape(rows, group * count, seen) @ self.values[:, :seen]
        return flat.reshape(rows, group, count, -1)


class Evicting(Dense):
    """Attention that forgets what a rule evicts.

    Args:
        rule: Chooses the victims.
        capacity: Tokens kept a row; as many are attended to exactly at first.
    """

    def __init__(self, rule: TokenRule, capacity: int) -> None:
        super().__init__()
        self._rule = rule
        self._capacity = capacity
        self._kept: KeptTokens | None = None

    def extend(self, new: LayerInputs) -> F32:
        """Attend token by token to what is kept."""
        self.take(new)
        if self._kept is None:
            self._kept = KeptTokens(self._rule, len(new.keys), self._capacity)
        return np.concatenate(
            [self.mix(self._shares(new, at)) for at in self.steps(new)], axis=2
        )

    def fork(self, parents: Indices) -> None:
        """Copy each row with the tokens that it keeps."""
        super().fork(parents)
        kept = self._kept
        assert kept is not None
        forked = KeptTokens(self._rule, len(parents), self._capacity)
        forked.positions[:] = kept.positions[parents]
        forked.scores[:] = kept.scores[parents]
        forked.count = kept.count
        self._kept = forked

    def _shares(self, new: LayerInputs, at: slice) -> F32:
        kept = self._kept
        assert kept is not None
        first = self.first(new) + at.start
        if first + at.stop - at.start <= self._capacity:
            shares = self.causal(new, at)
            for position in range(first, first + at.stop - at.start):
                kept.admit(position)
            kept.observe(shares.sum(axis=(1, 2)))
            return shares
        sparse = Sparse(self.scores(new, at))
        for step in range(at.stop - at.start):
            kept.admit(first + step)
            given = sparse.attend(step, kept.positions[:, : kept.count])
            kept.observe(given.sum(axis=1))
        return sparse.shares


class Sparse:
    """Scores of a step of positions, of which each one uses a few.

    Args:
        scores: ``[rows, group, n, seen]``.

    Attributes:
        shares: The probabilities, zero where nothing was attended to.
    """

    def __init__(self, scores: F32) -> None:
        rows, group, count, seen = scores.shape
        self.shares = np.zeros_like(scores)
        self._flat = scores.reshape(-1)
        self._flat_shares = self.shares.reshape(-1)
        self._seen = seen
        self._lines = (np.arange(rows * group) * (count * seen)).reshape(rows, group, 1)

    def attend(self, step: int, seen: Indices, row: int | None = None) -> F32:
        """Attend with one position's queries to the tokens at *seen*.

        Args:
            step: Which position of the step.
            seen: ``[rows, n]``.
            row: First of the rows that *seen* is for, if not for all.

        Returns:
            The probabilities ``[rows, group, n]``.
        """
        lines = self._lines if row is None else self._lines[row : row + len(seen)]
        index = lines + (step * self._seen + seen)[:, None]
        given = softmax(self._flat.take(index))
        self._flat_shares[index] = given
        return given


def product(queries: F32, keys: F32) -> F32:
    """Return ``[rows, group, n, seen]`` of ``[rows, group, n, d]`` and keys."""
    rows, group, count, width = queries.shape
    flat = queries.reshape(rows, group * count, width) @ keys.swapaxes(1, 2)
    return flat.reshape(rows, group, count, -1)


def softmax(scores: F32) -> F32:
    """Turn *scores* into probabilities over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
