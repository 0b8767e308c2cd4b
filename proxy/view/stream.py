"""The events of one publisher: received, in order, and what is missing asked for."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.kv_events.sequencer import Sequencer
from warmroute.policies.errors import AdapterError, BackendUnavailable
from warmroute.proxy.view.inbox import Inbox
from warmroute.proxy.view.intake import Intake, Message
from warmroute.proxy.view.snapshots import as_batches
from warmroute.proxy.view.track import Track
from warmroute.proxy.view.turns import Turns

logger = logging.getLogger(__name__)

_SLICE_S = 0.001
_MAX_WAITING = 256
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 0.4
_MAX_RETRIES = 1

Replay = Callable[[str, int], AsyncIterator[tuple[int, bytes]]]
AskSnapshot = Callable[[], Awaitable[Snapshot | None]]


class Stream:
    """One publisher: received at once, put into order, entered in slices.

    Entering takes turns of the event loop, so that a flood of events does not hold
    up requests. It is the owner's to call `received` and `turned`, which return at
    once.

    Args:
        name: Of the backend, for the log.
        address: The publisher.
        track: Where its blocks go.
        replay: Asks for messages again, from an address and a number.
        snapshot: Asks the engine for all that it has cached; returns None where it
            offers no such list. None where it surely does not.
        stamp: Returns a stamp that is greater than all before.
        turns: Gives it its share of the loop; shared with other streams.
        clock: Monotonic seconds.
        wall: Seconds of the wall clock.
        on_restart: Called when the messages prove that the engine started anew.

    Attributes:
        num_replays: Replays that were asked for and came.
        seq: Number of the newest message that was entered; None before the first.
    """

    __slots__ = (
        "_clock",
        "_has_failed",
        "_has_heard",
        "_inbox",
        "_intake",
        "_name",
        "_num_restarts",
        "_num_wipes",
        "_on_restart",
        "_replay",
        "_snapshot",
        "_task",
        "_turns",
        "address",
        "num_replays",
        "seq",
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
        turns: Turns | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self.address = address
        self.track = track
        self._replay = replay
        self._snapshot = snapshot
        self._clock = clock
        self._turns = turns or Turns(clock)
        self.sequencer = Sequencer(bool(address.replay or snapshot))
        self._num_restarts = self._num_wipes = 0
        self._on_restart = on_restart
        self._inbox = Inbox()
        self._intake = Intake(track, stamp, wall)
        self._has_heard = False
        self._task: asyncio.Task[None] | None = None
        self.num_replays = 0
        self.seq: int | None = None
        self._has_failed = False

    def __repr__(self) -> str:
        return f"<Stream {self._name} {self.address.endpoint} {self.sequencer!r}>"

    @property
    def lag_s(self) -> float | None:
        """Age of the newest live batch when it was entered; None before the first."""
        return self._intake.lag_s

    @property
    def status(self) -> str:
        """Return ``catching_up``, ``degraded``, ``silent`` or ``live``."""
        if self.is_catching_up:
            return "catching_up"
        if self.is_degraded:
            return "degraded"
        return "live" if self._has_heard or self.sequencer.is_complete else "silent"

    @property
    def is_degraded(self) -> bool:
        """Tell whether messages are missing that cannot be had again."""
        is_known = self._has_failed or self.sequencer.last is not None
        return is_known and not self.sequencer.is_complete

    @property
    def is_catching_up(self) -> bool:
        """Tell whether a replay is under way or received messages wait."""
        return self._task is not None or bool(self._inbox or self._intake)

    def start(self) -> None:
        """Ask for what was published before now."""
        self._ask()

    @property
    def is_full(self) -> bool:
        """Tell whether so much waits to be entered that more should not come."""
        return self._inbox.is_full

    def received(self, seq: int, payload: bytes) -> None:
        """Take a message; it is entered soon."""
        self._has_heard = True
        if self._inbox.add(seq, payload):
            self._turns.ask(self)

    def turned(self) -> None:
        """Note that the connection went or came: the engine may be another one."""
        self.sequencer.doubt()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._release(())
        self._ask()

    def restart(self) -> None:
        """Forget everything: the engine is known to have started anew."""
        self.sequencer.restart()
        self._num_restarts = self.sequencer.num_restarts
        self._release(())
        self._ask()

    def stop(self) -> None:
        """Enter nothing any more, whatever is under way."""
        self._turns.leave(self)
        self._inbox.clear()
        self._intake.drop()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and wait for it."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def work(self, until: float) -> bool:
        """Enter what is ready, then what was received; see `Turns`."""
        inbox, intake = self._inbox, self._intake
        while intake or inbox:
            if intake:
                intake.enter()
            else:
                ready = self.sequencer.live(*inbox.take())
                self._release(ready, is_live=True)
            if not intake:
                self.seq = self.sequencer.last
            if self._clock() > until:
                break
        self._ask()
        return bool(intake or inbox)

    def _release(self, messages: Iterable[Message], is_live: bool = False) -> None:
        """Let these be entered next; what they make void goes at once."""
        if self.sequencer.num_wipes != self._num_wipes:
            self._num_wipes = self.sequencer.num_wipes
            self._intake.wipe()
            self.seq = None
        if self.sequencer.num_restarts != self._num_restarts:
            self._num_restarts = self.sequencer.num_restarts
            self._on_restart()
        self._intake.add(messages, is_live)
        if self._intake:
            self._turns.ask(self)
        else:
            self.seq = self.sequencer.last

    def _ask(self) -> None:
        if self.sequencer.wanted is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        try:
            pause_s = _FIRST_RETRY_S
            while self.sequencer.wanted is not None:
                await self._ask_once()
                if pause_s > _LAST_RETRY_S:
                    self._give_up("what is sent again never meets what is sent now")
                elif self.sequencer.wanted is not None:
                    await asyncio.sleep(pause_s)
                    pause_s *= 2
        except Exception:
            logger.exception("kv_replay_crashed", extra={"backend": self._name})
            self._release(self.sequencer.failed())
            self._has_failed = True
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
            before = self.sequencer.last
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
                await self._complete(before)
                return
            await asyncio.sleep(pause_s)
            pause_s *= 2
            if self.sequencer.wanted is None:
                return

    async def _complete(self, before: int | None) -> None:
        """Ask for a snapshot where a replay did not bring what was missing."""
        sequencer = self.sequencer
        if sequencer.wanted is None:
            is_lacking = not sequencer.is_complete
        else:  # another replay may do, but where a snapshot surely does
            is_lacking = sequencer.last == before and self._snapshot is not None
        if is_lacking:
            await self._ask_snapshot()
        self._has_failed = False

    async def _ask_snapshot(self) -> bool:
        """Ask the engine itself for what it has; tell whether it said so."""
        try:
            snapshot = None if self._snapshot is None else await self._snapshot()
        except AdapterError as error:
            self._give_up(str(error))
            return False
        if snapshot is None:
            self._snapshot = None
            self._release(self.sequencer.failed())
            return False
        ready = self.sequencer.rebased(snapshot.seq)
        self._release(())
        self._release([as_batches(snapshot)])
        self._release(ready)
        self._has_failed = False
        return True

    async def _take(self, messages: AsyncIterator[tuple[int, bytes]]) -> None:
        until = self._clock() + _SLICE_S
        async for seq, payload in messages:
            self._release(self.sequencer.replayed(seq, payload))
            while self._clock() > until or len(self._intake) > _MAX_WAITING:
                await asyncio.sleep(0)
                until = self._clock() + _SLICE_S

    def _give_up(self, reason: str) -> None:
        self._release(self.sequencer.failed())
        self._has_failed = True
        extra = {"backend": self._name, "reason": reason}
        logger.warning("kv_events_degraded", extra=extra)
