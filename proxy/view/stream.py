"""The events of one publisher on their way into the view."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.kv_events.sequencer import Sequencer
from warmroute.adapters.kv_events.wire import Batch, decode
from warmroute.policies.errors import (
    AdapterError,
    BackendUnavailable,
    ProtocolMismatch,
)
from warmroute.proxy.view.snapshots import as_batches
from warmroute.proxy.view.track import Track

logger = logging.getLogger(__name__)

_SLICE_S = 0.002
_MAX_QUEUED = 200_000
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 0.4
_MAX_LAG_S = 1e6
_MAX_RETRIES = 1

Replay = Callable[[str, int], AsyncIterator[tuple[int, bytes]]]
AskSnapshot = Callable[[], Awaitable[Snapshot | None]]


class Stream:
    """One publisher: received at once, put into order, entered in slices.

    Entering takes 2 ms of the event loop at a time, so that a flood of events does
    not hold up requests. It is the owner's to call `received` and `turned`, which
    return at once.

    Args:
        name: Of the backend, for the log.
        address: The publisher.
        track: Where its blocks go.
        replay: Asks for messages again, from an address and a number.
        snapshot: Asks the engine for all that it has cached; returns None where it
            offers no such list. None where it surely does not.
        stamp: Returns a stamp that is greater than all before.
        clock: Monotonic seconds.
        wall: Seconds of the wall clock.

    Attributes:
        num_replays: Replays that were asked for and came.
        lag_s: Age of the newest batch when it was entered; None before the first.
        is_degraded: What was lost could not be had again.
    """

    __slots__ = (
        "_clock",
        "_has_heard",
        "_name",
        "_num_wipes",
        "_queue",
        "_ready",
        "_replay",
        "_snapshot",
        "_stamp",
        "_task",
        "_timer",
        "_wall",
        "address",
        "is_degraded",
        "lag_s",
        "num_replays",
        "sequencer",
        "track",
    )

    def __init__(
        self,
        name: str,
        address: EventAddress,
        track: Track,
        replay: Replay,
        snapshot: AskSnapshot | None,
        stamp: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self.address = address
        self.track = track
        self._replay = replay
        self._snapshot = snapshot
        self._stamp = stamp
        self._clock = clock
        self._wall = wall
        self.sequencer = Sequencer(bool(address.replay or snapshot))
        self._num_wipes = 0
        self._queue: deque[tuple[int, bytes]] = deque()
        self._ready: deque[bytes | Batch] = deque()
        self._has_heard = False
        self._timer: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self.num_replays = 0
        self.lag_s: float | None = None
        self.is_degraded = False

    def __repr__(self) -> str:
        return f"<Stream {self._name} {self.address.endpoint} {self.sequencer!r}>"

    @property
    def status(self) -> str:
        """Return ``catching_up``, ``degraded``, ``silent`` or ``live``."""
        if self.is_catching_up:
            return "catching_up"
        if self.is_degraded:
            return "degraded"
        is_known = self._has_heard or self.sequencer.is_complete
        return "live" if is_known else "silent"

    @property
    def is_catching_up(self) -> bool:
        """Tell whether a replay is under way or received messages wait."""
        return self._task is not None or bool(self._queue or self._ready)

    def start(self) -> None:
        """Ask for what was published before now."""
        self._ask()

    def received(self, seq: int, payload: bytes) -> None:
        """Take a message; it is entered soon."""
        if len(self._queue) < _MAX_QUEUED:  # beyond, it is a gap like any other
            self._queue.append((seq, payload))
        self._has_heard = True
        self._wake()

    def turned(self) -> None:
        """Note that the connection went or came: the engine may be another one."""
        self.sequencer.doubt()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._ask()

    def restart(self) -> None:
        """Forget everything: the engine is known to have started anew."""
        self.sequencer.restart()
        self._release(())
        self._ask()

    def stop(self) -> None:
        """Enter nothing any more, whatever is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and wait for it."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _wake(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._enter)

    def _enter(self) -> None:
        """Enter what is ready, then what was received, for 2 ms at most."""
        self._timer = None
        until = self._clock() + _SLICE_S
        queue, ready = self._queue, self._ready
        while queue or ready:
            if ready:
                self._enter_one(ready.popleft())
            else:
                self._release(self.sequencer.live(*queue.popleft()))
            if self._clock() > until:
                if queue or ready:
                    self._wake()
                break
        self._ask()

    def _release(self, payloads: Iterable[bytes | Batch]) -> None:
        """Let these be entered next; what they make void goes at once."""
        if self.sequencer.num_wipes != self._num_wipes:
            self._num_wipes = self.sequencer.num_wipes
            self._ready.clear()
            self.track.wipe(self._stamp())
        self._ready.extend(payloads)
        if self._ready:
            self._wake()

    def _enter_one(self, message: bytes | Batch) -> None:
        if isinstance(message, Batch):
            self.track.apply(message, self._stamp())
            return
        try:
            batch = decode(message)
        except ProtocolMismatch:
            self.track.num_skipped += 1
            return
        self.track.apply(batch, self._stamp())
        self.lag_s = min(max(0.0, self._wall() - batch.timestamp), _MAX_LAG_S)

    def _ask(self) -> None:
        if self.sequencer.wanted is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        try:
            pause_s = _FIRST_RETRY_S
            while self.sequencer.wanted is not None:
                await self._ask_once()
                if pause_s > _LAST_RETRY_S:
                    self._snapshot = None
                    self._give_up("what is sent again never meets what is sent now")
                elif self.sequencer.wanted is not None:
                    await asyncio.sleep(pause_s)
                    pause_s *= 2
        except Exception:
            logger.exception("kv_replay_crashed", extra={"backend": self._name})
            self._release(self.sequencer.failed())
            self.is_degraded = True
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _ask_once(self) -> None:
        """Ask for what is wanted until it came, or two tries have failed."""
        endpoint = self.address.replay
        if endpoint is None:
            await self._ask_snapshot()
            return
        pause_s = _FIRST_RETRY_S
        for attempt in range(_MAX_RETRIES + 1):
            try:
                await self._take(self._replay(endpoint, self.sequencer.begin()))
            except BackendUnavailable as error:
                if attempt == _MAX_RETRIES:
                    if not await self._ask_snapshot():
                        self._give_up(str(error))
                    return
            else:
                self.num_replays += 1
                self._release(self.sequencer.ended())
                if self.sequencer.wanted is None and not self.sequencer.is_complete:
                    await self._ask_snapshot()
                self.is_degraded = not self.sequencer.is_complete
                return
            await asyncio.sleep(pause_s)
            pause_s *= 2
            if self.sequencer.wanted is None:
                return

    async def _ask_snapshot(self) -> bool:
        """Ask the engine itself for what it has; tell whether it said so."""
        snapshot = None
        try:
            if self._snapshot is not None:
                snapshot = await self._snapshot()
        except AdapterError as error:
            self._give_up(str(error))
            return False
        if snapshot is None:
            self._snapshot = None
            self._release(self.sequencer.failed())
            self.is_degraded = not self.sequencer.is_complete
            return False
        ready = self.sequencer.rebased(snapshot.seq)
        self._release(())
        self._release(as_batches(snapshot))
        self._release(ready)
        self.is_degraded = False
        return True

    async def _take(self, messages: AsyncIterator[tuple[int, bytes]]) -> None:
        until = self._clock() + _SLICE_S
        async for seq, payload in messages:
            self._release(self.sequencer.replayed(seq, payload))
            if self._clock() > until:
                await asyncio.sleep(0)
                until = self._clock() + _SLICE_S

    def _give_up(self, reason: str) -> None:
        self._release(self.sequencer.failed())
        self.is_degraded = True
        logger.warning(
            "kv_events_degraded", extra={"backend": self._name, "reason": reason}
        )
