"""Whether a backend lives, and whether it is still the same process: pure.

*Alive.* N failed probes in a row make a backend down, one good probe makes it
up. Traffic outranks probes: while an answer or a stream moved on within the
window (N intervals), a probe that times out or complains changes nothing, as an
engine in a long prefill is busy, not dead. A refused connection is different:
nobody listens there, whatever old streams still deliver. One refused probe is
enough if traffic was refused too or nothing moved lately, else two in a row.

*Restarted.* The cache of a new process is empty, so its view must be wiped and
its load counted afresh. The engine's boot id (process start time, seed of the
run) decides alone where it is known before and after: equal means the same
process, however long it was away. Where it is unknown, a refused connection or
having been down counts as a restart: to forget a warm cache costs some misses,
to promise a lost one costs misses and trust. A flap of the breaker, a slow
probe, an HTTP error or a reset connection says nothing about it. Boot ids that
come back show several processes behind one address; they are ignored from then
on.
"""

from collections import deque
from typing import Literal

Life = Literal["starting", "up", "down"]

REMEMBERED_BOOTS = 8


class Vitals:
    """Judge one backend by its probes and its traffic.

    Args:
        failures: Failed probes in a row until down.
        window_s: How long progress on traffic vouches for the backend.
    """

    __slots__ = (
        "_boots",
        "_failures",
        "_is_foreseen",
        "_limit",
        "_refused_probes",
        "_refused_traffic",
        "_was_up",
        "_window_s",
        "boot_id",
        "is_mixed",
        "is_suspect",
        "life",
        "progress_at",
    )

    def __init__(self, failures: int, window_s: float) -> None:
        self.life: Life = "starting"
        self.progress_at = float("-inf")
        self.boot_id: str | None = None
        self.is_suspect = False
        self.is_mixed = False
        self._boots: deque[str] = deque(maxlen=REMEMBERED_BOOTS)
        self._limit = failures
        self._window_s = window_s
        self._failures = 0
        self._refused_probes = 0
        self._refused_traffic = False
        self._was_up = False
        self._is_foreseen = False

    def __repr__(self) -> str:
        doubt = ", suspect" if self.is_suspect else ""
        return f"<Vitals {self.life} [failed: {self._failures}/{self._limit}{doubt}]>"

    def configure(self, failures: int, window_s: float) -> None:
        """Judge by other bounds from now on; what was counted stays."""
        self._limit = failures
        self._window_s = window_s

    def is_doubted(self) -> bool:
        """Tell whether the next good probe must look for a new process."""
        return self.is_suspect or self.life != "up"

    def is_lively(self, now: float) -> bool:
        """Tell whether traffic moved on within the window."""
        return now - self.progress_at <= self._window_s

    def refuse_traffic(self) -> None:
        """Note that a request's connection was refused."""
        self.is_suspect = self._refused_traffic = True

    def fail_probe(self, now: float, refused: bool) -> None:
        """Note a failed probe."""
        self._failures += 1
        if refused:
            self._fail_refused(now)
            return
        self._refused_probes = 0
        if self.is_lively(now):
            if not self.is_suspect:
                self.life = "up"
        elif self.life == "starting" or self._failures >= self._limit:
            self.life = "down"

    def condemn(self) -> None:
        """Note a probe that no traffic outweighs: what answers there is no engine."""
        self._failures += 1
        self.life = "down"

    def foresee_restart(self) -> None:
        """Note a restart that others have proved: a probe is about to meet it."""
        self._is_foreseen = True

    def pass_probe(self, boot_id: str | None, is_fresh: bool = True) -> bool:
        """Note a good probe; tell whether it met a new process.

        Args:
            boot_id: What the engine said in this probe, None if it did not.
            is_fresh: Whether it was begun after the last restart that is known.
        """
        restarted = self._meets_restart(boot_id)
        is_known = restarted and self._is_foreseen
        is_told = boot_id is not None or self.boot_id is None
        if restarted or (is_fresh and is_told):
            self._is_foreseen = False
        if boot_id is not None and boot_id not in self._boots:
            self._boots.append(boot_id)
        if boot_id is not None or restarted:
            self.boot_id = boot_id
        self.life = "up"
        self._was_up = True
        self.is_suspect = self._refused_traffic = False
        self._failures = self._refused_probes = 0
        return restarted and not is_known

    def _fail_refused(self, now: float) -> None:
        self.is_suspect = True
        self._refused_probes += 1
        confirmed = self._refused_traffic or self._refused_probes > 1
        if confirmed or not self.is_lively(now):
            self.life = "down"

    def _meets_restart(self, boot_id: str | None) -> bool:
        if self.boot_id is not None and boot_id is not None and not self.is_mixed:
            if boot_id == self.boot_id:
                return False
            self.is_mixed = boot_id in self._boots
            return not self.is_mixed
        was_used = self._was_up or self.progress_at > float("-inf")
        return was_used and (self.is_suspect or self.life == "down")
