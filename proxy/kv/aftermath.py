"""What a flush or an eviction makes of the view, before its answer is given.

An engine that announces its blocks mostly has told before it answered, and its events
are on their way over another connection: they are waited for. Some tell with their
next step only, which on an idle engine never comes; then the view is brought up to
date by what the answer says, and the late event finds nothing to do.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from warmroute.adapters.kv_control import Evicted, Flushed
from warmroute.adapters.kv_events.wire import block_key
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.view import View

_PATIENCE_S = 0.25
_PAUSE_S = 0.005
_SLICE_S = 0.002


class Aftermath:
    """Bring the view of a backend in line with what it answered.

    Args:
        view: What the backends are believed to hold.
        index: The blocks of the view.
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_index", "_view")

    def __init__(
        self,
        view: View,
        index: PrefixIndex,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._index = index
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Aftermath in {self._view!r}>"

    async def follow(self, name: str, answer: Struct) -> None:
        """Return once the view of *name* shows what *answer* says; within 0.25 s."""
        if not self._view.has(name):
            return
        if isinstance(answer, Evicted) and answer.evicted:
            await self._evicted(name, answer)
        elif isinstance(answer, Flushed) and answer.dropped != 0:
            await self._flushed(name, answer)

    async def _evicted(self, name: str, answer: Evicted) -> None:
        if self._view.facts(name)["source"] != "events":
            # Which of its blocks the engine's hashes stand for is not known: better
            # to promise nothing than what is gone.
            self._view.emptied(name)
            return
        keys = [block_key(one) for one in answer.evicted]
        tiers = self._view.tiers(name)
        await self._until(lambda: self._index.find(tiers[0], keys[-1]) is None)
        if self._view.has(name):
            await self._remove(name, tiers, keys)

    async def _remove(
        self, name: str, tiers: Sequence[int], keys: Sequence[int]
    ) -> None:
        """Take blocks out of the view, 2 ms of the loop at a time.

        Ends when the engine tells itself: its batch says what went, and maybe what
        came back since, which must not go by an older answer.
        """
        seq = self._view.facts(name)["seq"]
        until = self._clock() + _SLICE_S
        for tier in tiers:
            for key in keys:
                while self._index.remove_block(tier, key):
                    pass
                if self._clock() > until:
                    await asyncio.sleep(0)
                    if not self._view.has(name) or self._view.facts(name)["seq"] != seq:
                        return
                    until = self._clock() + _SLICE_S

    async def _flushed(self, name: str, answer: Flushed) -> None:
        if self._view.facts(name)["source"] == "events":
            gpu = self._view.tiers(name)[0]
            kept = answer.referenced or 0
            is_shown = await self._until(lambda: self._index.blocks(gpu) <= kept)
            if answer.flushed and not is_shown and self._view.has(name):
                self._view.emptied(name)
        elif answer.flushed or answer.dropped:
            # What stays of a part is not known: promise nothing rather than too much.
            self._view.emptied(name)

    async def _until(self, holds: Callable[[], bool]) -> bool:
        deadline = self._clock() + _PATIENCE_S
        while not holds():
            if self._clock() > deadline:
                return False
            await asyncio.sleep(_PAUSE_S)
        return True
