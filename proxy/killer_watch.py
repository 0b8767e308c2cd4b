"""Some of the prompts that pass are looked at for what breaks their prefixes."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from warmroute.policies.killers.chunks import MAX_TEXT_BYTES
from warmroute.policies.killers.detector import KillerDetector
from warmroute.proxy.prompt import Prompt

logger = logging.getLogger(__name__)

EVERY_S: Final = 0.05
"""One prompt so often, whatever the traffic."""

MAX_QUEUED: Final = 64

_MIN_TEXT_BYTES: Final = 256
_KINDS: Final = frozenset(("chat", "completions", "responses", "messages", "generate"))
_MAX_SHOWN: Final = 20

Sample = tuple[bytes, int, float, int]


class KillerWatch:
    """Take prompts as long as there is room, and look at one every 50 ms.

    On the loop, in steps below a millisecond: a thread would hold it up for as long.
    Texts wait in a queue of 64, of 32 KiB at most, and go once looked at.

    Args:
        clock: Monotonic seconds.

    Attributes:
        has_room: Whether `see` takes another one.
        num_passed: Requests that were not taken since the last one that was.
    """

    __slots__ = ("_clock", "_detector", "_queue", "_timer", "has_room", "num_passed")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._detector = KillerDetector()
        self._queue: deque[Sample] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.has_room = True
        self.num_passed = 0

    def __repr__(self) -> str:
        return f"<KillerWatch queued={len(self._queue)} {self._detector!r}>"

    def see(self, prompt: Prompt) -> None:
        """Queue the text of *prompt*, if it has one; needs a running loop.

        Nearly free while there is no room.
        """
        if not self.has_room:
            self.num_passed += 1
            return
        pieces = prompt.pieces
        if not pieces or prompt.kind not in _KINDS:
            return
        text = pieces[0].text
        if text is None or len(text) < _MIN_TEXT_BYTES:
            return
        queue = self._queue
        text = text[:MAX_TEXT_BYTES]
        weight = 1 + self.num_passed
        queue.append((text, pieces[0].root, prompt.bytes_per_token, weight))
        self.num_passed = 0
        self.has_room = len(queue) < MAX_QUEUED
        if self._timer is None:
            self._wait()

    def report(self, block_size: int) -> list[dict[str, Any]]:
        """Return what was found, the dearest first, as ``/api/state`` shows it."""
        found = self._detector.killers(self._clock())
        return [
            {
                "cluster": one.cluster,
                "first_block": one.first_block(block_size),
                "token_offset": one.token_offset,
                "requests": one.requests,
                "tokens_a_day": one.tokens_a_day,
                "kind": one.kind,
                "example": one.example,
                "sentence": one.sentence,
            }
            for one in found[:_MAX_SHOWN]
        ]

    def look(self) -> None:
        """Look at the prompt that has waited longest, if there is one."""
        if not self._queue:
            return
        text, root, bytes_per_token, weight = self._queue.popleft()
        self.has_room = True
        now = self._clock()
        self._detector.observe(text, root, bytes_per_token, now, weight)

    def close(self) -> None:
        """Look no more."""
        self.has_room = False
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(EVERY_S, self._work)

    def _work(self) -> None:
        self._timer = None
        try:
            self.look()
        except Exception:
            self.close()
            logger.exception("cache_killer_watch_failed")
            return
        if self._queue:
            self._wait()
