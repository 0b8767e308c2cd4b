"""The candidates of a request as the view knows them, worked out once for many."""

from collections.abc import Mapping, Sequence
from typing import Final

from warmroute.policies.routing.base import Candidate
from warmroute.proxy.view.mirror import Mirror

_MAX_SPREADS: Final = 4096


class Lineup:
    """The mirrors of one list of candidates, for as long as they stay what they are.

    The view drops it when a backend comes, goes, changes its block size, or gains or
    loses belief.

    Attributes:
        candidates: The list itself; its identity is what a lineup is found by.
        mirrors: The view of each; None where there is none.
        places: Position of each backend that has a view, by name.
        sizes: Each block size among them, with the bits of the believed backends
            that have it.
        doubted: Positions of the backends whose promises count in part.
    """

    __slots__ = (
        "_places_by_bit",
        "_spreads",
        "candidates",
        "doubted",
        "mirrors",
        "places",
        "sizes",
    )

    def __init__(
        self, candidates: Sequence[Candidate], views: Mapping[str, Mirror]
    ) -> None:
        self.candidates = candidates
        self.mirrors = [views.get(candidate.name) for candidate in candidates]
        self.places: dict[str, int] = {}
        self._places_by_bit: dict[int, int] = {}
        self._spreads: dict[int, tuple[int, ...]] = {}
        self.doubted: list[int] = []
        sizes: dict[int, int] = {}
        for at, mirror in enumerate(self.mirrors):
            if mirror is None:
                continue
            self.places[mirror.name] = at
            bit = 1 << mirror.gpu
            self._places_by_bit[bit] = at
            bits = sizes.get(mirror.block_size, 0)
            sizes[mirror.block_size] = bits | bit * mirror.is_believed
            if mirror.trust.discount < 1.0:
                self.doubted.append(at)
        self.sizes = tuple(sizes.items())

    def __repr__(self) -> str:
        return f"<Lineup [Backends: {list(self.places)}, sizes: {self.sizes}]>"

    def spread(self, bits: int) -> tuple[int, ...]:
        """Return the positions of the candidates that *bits* stand for."""
        places = self._spreads.get(bits)
        if places is None:
            if len(self._spreads) >= _MAX_SPREADS:
                self._spreads.clear()
            by_bit = self._places_by_bit
            places = tuple(at for bit, at in by_bit.items() if bits & bit)
            self._spreads[bits] = places
        return places
