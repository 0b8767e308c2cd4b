"""Having engines retain blocks, within bounds, and letting go of all of them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from warmroute.policies.errors import ClientError, WarmrouteError
from warmroute.proxy.conductor.holdings import Holdings

logger = logging.getLogger(__name__)

_UNDER_WAY_S = 1.5
_GOODBYE_S = 3.0


class Engines(Protocol):
    """Who keeps blocks, and lets go of them."""

    async def retain(self, name: str, keys: list[int], ttl_s: float) -> int:
        """Keep blocks, the first ones first; returns how many are kept."""
        ...

    async def release(self, name: str, keys: list[int]) -> None:
        """Keep blocks no longer."""
        ...


class Retainer:
    """Retain blocks and know which are, as their engines do.

    They are noted before an engine is asked, so that none is forgotten when all are
    let go of meanwhile; what the engine refuses is taken back when it answers.

    Args:
        engines: Are asked.
        clock: Monotonic seconds.

    Attributes:
        holdings: What is retained.
    """

    __slots__ = ("_clock", "_engines", "_under_way", "holdings")

    def __init__(self, engines: Engines, clock: Callable[[], float]) -> None:
        self._engines = engines
        self._clock = clock
        self._under_way: set[asyncio.Task[int]] = set()
        self.holdings = Holdings()

    def __repr__(self) -> str:
        return f"<Retainer {self.holdings!r}>"

    async def retain(self, name: str, keys: list[int], ttl_s: float) -> int:
        """Keep blocks for a time; returns how many of the first ones are kept.

        Cancelled, it goes on: the engine has the request already.
        """
        task = asyncio.get_running_loop().create_task(self._ask(name, keys, ttl_s))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _ask(self, name: str, keys: list[int], ttl_s: float) -> int:
        until = self._clock() + ttl_s
        before = self.holdings.add(name, keys, until)
        try:
            num_kept = await self._engines.retain(name, keys, ttl_s)
        except ClientError:
            self.holdings.restore(name, keys, before)
            raise
        self.holdings.restore(name, keys[num_kept:], before)
        return num_kept

    async def let_go(self) -> None:
        """Release everything, what is under way included; in 4.5 s at most."""
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=_UNDER_WAY_S)
        for task in self._under_way:
            task.cancel()
        held = self.holdings.take_all()
        calls = (self._release(name, keys) for name, keys in held.items())
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await asyncio.gather(*calls)
        except TimeoutError:
            logger.warning("conductor_release_timed_out")

    async def _release(self, name: str, keys: list[int]) -> None:
        """Have an engine let go; what fails is told, and ends by itself."""
        try:
            await self._engines.release(name, keys)
        except WarmrouteError as error:
            facts = {"backend": name, "blocks": len(keys), "reason": str(error)}
            logger.warning("conductor_release_failed", extra=facts)
        except Exception:  # an adapter is a plugin and may raise anything
            logger.exception("conductor_release_failed", extra={"backend": name})
