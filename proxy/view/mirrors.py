"""The backends as the view knows them: who has what, and how that is known."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, nextafter
from typing import Final

from warmroute.policies.kv.capacity import Capacity
from warmroute.policies.kv.holders import NUM_TIERS, PROMISED
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.view.lineup import Lineup
from warmroute.proxy.view.mirror import Mirror, WasRemoved
from warmroute.proxy.view.seats import Facts
from warmroute.proxy.view.sweeper import Sweeper
from warmroute.proxy.view.trust import Trust

DEFAULT_BLOCK_SIZE: Final = 16

_MIN_PROMISED: Final = 1024
_TRUE_SHARE: Final = 0.9

Tell = Callable[[], Facts]


class Mirrors:
    """What is kept of every backend beside the index itself; see `View`.

    Of a backend with several data-parallel ranks, each has a view of its own, under
    a name of its own; the first one's is the backend's.

    Args:
        index: Where the blocks are.
        clock: Seconds on the clock of the requests, for what comes without a time;
            left out, that is as old as what came before it.
    """

    __slots__ = (
        "_clock",
        "_index",
        "_lineups",
        "_mirrors",
        "_seats",
        "_stamp",
        "_sweeper",
        "_told",
    )

    def __init__(
        self, index: PrefixIndex, clock: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock
        self._index = index
        self._sweeper = Sweeper(index)
        self._mirrors: dict[str, Mirror] = {}
        self._seats: dict[str, tuple[str, ...]] = {}
        self._told: dict[str, Tell] = {}
        self._lineups: dict[int, Lineup] = {}
        self._stamp = 0.0

    def add_backend(
        self,
        name: str,
        block_size: int | None = DEFAULT_BLOCK_SIZE,
        capacity_tokens: int | None = None,
        source: str = "mirror",
    ) -> None:
        """Begin to keep the view of a backend; unknown block sizes are taken as 16.

        A backend of that name that is there already is replaced.
        """
        if name in self._mirrors:
            self.remove_backend(name)
        holder = self._index.add_holder(name)
        self._mirrors[name] = Mirror(
            name,
            holder,
            block_size or DEFAULT_BLOCK_SIZE,
            source,
            Capacity(capacity_tokens),
        )
        self._index.set_capacity(holder, capacity_tokens)
        self._lineups.clear()

    def remove_backend(self, name: str) -> None:
        """Forget a backend; its name may come back and inherits nothing."""
        for seat in self._seats.pop(name, (name,)):
            self._mirrors.pop(seat).restart()
            self._told.pop(seat, None)
            self._index.remove_backend(seat)
        self._sweeper.start()
        self._lineups.clear()

    def wipe(self, name: str) -> None:
        """Drop all blocks of a backend whose engine has restarted."""
        for seat in self._seats.get(name, (name,)):
            mirror = self._mirrors[seat]
            mirror.restart()
            if mirror.source == "events":  # what it has, its events tell
                self._index.remove_holder(mirror.holder)
            else:
                self._clear(mirror)
            self._bound(mirror)
        self._lineups.clear()

    def has(self, name: str) -> bool:
        """Tell whether the view of a backend is kept."""
        return name in self._mirrors or name in self._seats

    def block_size(self, name: str) -> int:
        """Return the tokens a block of a backend."""
        return self._mirrors[name].block_size

    def tiers(self, name: str) -> list[int]:
        """Return the numbers of a backend's tiers: gpu, host, disk, for each rank."""
        return [
            self._mirrors[seat].gpu + at
            for seat in self._seats.get(name, (name,))
            for at in range(NUM_TIERS)
            if at != PROMISED
        ]

    def emptied(self, name: str) -> None:
        """Drop what an engine was told to drop; it is the same one, and stays known.

        What requests in flight are about to compute stays promised, where the engine
        announces its blocks.
        """
        for seat in self._seats.get(name, (name,)):
            self._clear(self._mirrors[seat])

    def cleared(self, name: str) -> Mapping[str, int]:
        """Drop what a rank has announced; return the numbers of its tiers from now on.

        What its requests in flight are about to compute stays promised.
        """
        self._clear(self._mirrors[name])
        return self._announcing(name)

    def announce(self, name: str, facts: Tell) -> Mapping[str, int]:
        """Let the engine of a backend tell itself what it has, by its events.

        Args:
            name: The backend, or the rank.
            facts: Returns what is known of the events, for `facts`.

        Returns:
            The number of each tier, for what it announces.
        """
        mirror = self._mirrors[name]
        self._told[name] = facts
        self._clear(mirror)
        self._index.set_capacity(mirror.gpu, None)
        mirror.holder = self._index.add_holder(name, "promised")
        mirror.was_removed = None
        mirror.has_announced = False
        mirror.num_unheard = 0
        self._change_source(mirror, "events")
        return self._announcing(name)

    def heard(self, name: str, block_size: int) -> None:
        """Take over that an engine announces blocks, and of what size."""
        self._mirrors[name].has_announced = True
        self._resize(self._mirrors[name], block_size)

    def counted(self, name: str, promised: int, realised: int) -> None:
        """Take in how many of the promised tokens an engine's counters show as hits.

        For engines whose answers report nothing: the view of such a backend is
        believed as far as it was right in the last interval.
        """
        if promised < _MIN_PROMISED:
            return
        share = realised / promised
        for seat in self._seats.get(name, (name,)):
            mirror = self._mirrors[seat]
            mirror.hear(realised, promised)
            mirror.trust.discount = 1.0 if share > _TRUE_SHARE else share
        self._lineups.clear()

    def verify_by(self, name: str, was_removed: WasRemoved) -> None:
        """Let broken promises be explained by what was announced to be gone."""
        self._mirrors[name].was_removed = was_removed

    def mirror_again(self, name: str) -> None:
        """Go back to what was sent: the events of a backend cannot be relied on."""
        mirror = self._mirrors[name]
        self._told.pop(name, None)
        self._index.remove_holder(mirror.holder)
        self._clear(mirror)
        mirror.holder = mirror.gpu
        self._change_source(mirror, "mirror")

    def stamp(self) -> float:
        """Return a stamp that is greater than all before: the time, with a clock."""
        now = self._clock() if self._clock is not None else 0.0
        self._stamp = now if now > self._stamp else nextafter(self._stamp, inf)
        return self._stamp

    def configure(
        self,
        name: str,
        block_size: int | None = None,
        capacity_tokens: int | None = None,
        seats: Sequence[str] = (),
    ) -> None:
        """Take over what became known of an engine; None leaves as is.

        Args:
            name: The backend.
            block_size: Tokens a block.
            capacity_tokens: What all ranks together keep.
            seats: What its ranks are called, or it alone.
        """
        if seats:
            self._seat(name, tuple(seats))
        seats = self._seats.get(name, (name,))
        for seat in seats:
            mirror = self._mirrors[seat]
            if block_size:
                self._resize(mirror, block_size)
            if capacity_tokens is not None:
                mirror.capacity.tell(capacity_tokens // len(seats))
                self._bound(mirror)

    def _seat(self, name: str, seats: tuple[str, ...]) -> None:
        before = self._seats.get(name, (name,))
        if seats == before:
            return
        for gone in before[1:]:
            self.remove_backend(gone)
        self._seats[name] = (name,)
        mirror = self._mirrors[name]
        if mirror.source != "events":
            self.wipe(name)  # it was believed of all together
        self._seats[name] = seats
        for seat in seats[1:]:
            self.add_backend(seat, mirror.block_size)

    def _resize(self, mirror: Mirror, block_size: int) -> None:
        if block_size == mirror.block_size:
            return
        mirror.block_size = block_size
        self._index.remove_holder(mirror.holder)
        if mirror.source != "events":
            self._clear(mirror)
        self._lineups.clear()

    def _announcing(self, name: str) -> Mapping[str, int]:
        tiers = ("gpu", "host", "disk")
        return {tier: self._index.add_holder(name, tier) for tier in tiers}

    def _clear(self, mirror: Mirror) -> None:
        """Drop what a backend has; a large cache moves it to other numbers."""
        if self._index.clear_backend(mirror.name):
            is_promising = mirror.holder != mirror.gpu
            mirror.gpu = mirror.holder = self._index.add_holder(mirror.name)
            if is_promising:
                mirror.holder = self._index.add_holder(mirror.name, "promised")
            self._lineups.clear()
            self._sweeper.start()

    def _change_source(self, mirror: Mirror, source: str) -> None:
        mirror.source = source
        mirror.trust = Trust()
        mirror.restart()
        self._bound(mirror)
        self._lineups.clear()

    def _bound(self, mirror: Mirror) -> None:
        limit = mirror.capacity.limit
        num_tokens = None if limit is None else int(limit)
        if self._index.holders.all[mirror.holder].capacity != num_tokens:
            self._index.set_capacity(mirror.holder, num_tokens)
