"""The tokens that a rule has kept, slot by slot, for several rows at once."""

import numpy as np

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.token_base import Floats, Indices, TokenRule


class KeptTokens:
    """Which position lies in which slot of each row.

    Slots fill from 0; once they are full, each new token takes the slot of a
    victim, so keys and values never move. The rows differ in which tokens they
    keep, never in how many.

    Args:
        rule: Chooses the victims.
        rows: Rows kept side by side.
        capacity: Slots a row.

    Attributes:
        count: Slots in use, the same in every row.
        positions: ``[rows, capacity]``; valid up to *count*.
        scores: ``[rows, capacity]``, attention received; valid up to *count*.

    Raises:
        PolicyError: There are no rows, or a row has no slot.
    """

    __slots__ = ("_every_row", "count", "positions", "rule", "scores")

    def __init__(self, rule: TokenRule, rows: int, capacity: int) -> None:
        if rows < 1 or capacity < 1:
            raise PolicyError(
                f"a budget of {capacity} tokens in {rows} rows (allowed: 1 or more of "
                "each); raise the token budget"
            )
        self.rule = rule
        self.count = 0
        self.positions: Indices = np.zeros((rows, capacity), np.int64)
        self.scores: Floats = np.zeros((rows, capacity), np.float32)
        self._every_row: Indices = np.arange(rows)

    def __repr__(self) -> str:
        rows, capacity = self.positions.shape
        return f"<KeptTokens {self.rule.name}: {self.count}/{capacity} in {rows} rows>"

    @property
    def capacity(self) -> int:
        """Slots a row."""
        return len(self.positions[0])

    def start(self, scores: Floats) -> Indices:
        """Choose what stays of a prompt whose attention was computed in full.

        Forgets what was kept before. O(rows * length).

        Args:
            scores: ``[rows, length]``: attention that each token received.

        Returns:
            ``[rows, min(length, capacity)]``: positions kept, ascending; the one at
            index i lies in slot i.
        """
        rows, length = scores.shape
        chosen = np.broadcast_to(np.arange(length), (rows, length))
        if length > self.capacity:
            worth = self.rule.worth(chosen, scores, length)
            order = np.argpartition(worth, length - self.capacity, axis=1)
            chosen = np.sort(order[:, length - self.capacity :], axis=1)
        self.count = chosen.shape[1]
        self.positions[:, : self.count] = chosen
        self.scores[:, : self.count] = np.take_along_axis(scores, chosen, 1)
        return self.positions[:, : self.count].copy()

    def admit(self, position: int) -> Indices:
        """Make room for the token at *position*, evicting one where rows are full.

        Returns:
            ``[rows]``: its slot in each row.

        Raises:
            PolicyError: The rows are full and the rule evicts nothing.
        """
        if self.count < self.capacity:
            slots = np.full(len(self._every_row), self.count, np.int64)
            self.count += 1
        else:
            worth = self.rule.worth(self.positions, self.scores, position)
            slots = worth.argmin(axis=1)
        self.positions[self._every_row, slots] = position
        self.scores[self._every_row, slots] = 0
        return slots

    def observe(self, probabilities: Floats) -> None:
        """Add the attention ``[rows, count]`` that the kept tokens just received."""
        self.scores[:, : self.count] += probabilities

    def extend(self, capacity: int) -> None:
        """Give every row room for *capacity* tokens, no fewer than before."""
        missing = ((0, 0), (0, capacity - self.capacity))
        self.positions = np.pad(self.positions, missing)
        self.scores = np.pad(self.scores, missing)

    def check_integrity(self) -> None:
        """Assert what always holds; for tests."""
        assert 0 <= self.count <= self.capacity
        kept = np.sort(self.positions[:, : self.count], axis=1)
        assert (np.diff(kept, axis=1) > 0).all(), "a position is kept twice"
        assert np.isfinite(self.scores[:, : self.count]).all()
