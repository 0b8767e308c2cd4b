"""Processes that compute the steps of a model together."""

import contextlib
import logging
import math
import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple, NoReturn

from threadpoolctl import ThreadpoolController

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.meeting import Meeting
from warmroute.adapters.embedded.model.member import Member
from warmroute.adapters.embedded.model.shared_memory import shared_zeros
from warmroute.adapters.embedded.model.shares import Share, split
from warmroute.adapters.stopping import SIGNALS
from warmroute.adapters.tokens.errors import ModelError

_FIRST_FD = 3

_MAX_UNASKED = 4
"""Processes where nobody says: a container may have fewer cores than it sees."""

_blas = ThreadpoolController().select(user_api="blas")

log = logging.getLogger(__name__)


def default_size() -> int:
    """Return how many processes suit: as many as a product may take threads, if few."""
    threads = (each.num_threads for each in _blas.lib_controllers)
    return min(max(threads, default=1), _MAX_UNASKED)


class _Mate(NamedTuple):
    """Another member: its process, and what it is told of each step."""

    pid: int
    steps: Connection


class Crew:
    """One process a core, all of which see the same weights, pages and rows.

    Threads do not do: Python runs one at a time between two products, and a thread
    that waited for another wakes later than a small product takes. So the process
    forks when the crew is made, and its children wait for steps. They end with it,
    also when it is killed.

    If one ends early, this process computes alone from then on, and the step that it
    was in fails.

    Args:
        model: The model.
        store: Its pages.
        size: Processes; 1 forks none.
        max_rows: Rows of a step at most.
        max_samples: Rows at most whose logits are wanted in a step.

    Raises:
        ModelError: The processes cannot begin, or have nowhere to meet.
    """

    __slots__ = ("_mates", "_member", "_model", "_store")

    def __init__(
        self,
        model: Llama,
        store: KVStore,
        size: int = 1,
        max_rows: int = 1,
        max_samples: int = 1,
    ) -> None:
        self._model = model
        self._store = store
        self._mates: list[_Mate] = []
        if size == 1:
            return
        sizes = model.shared_sizes(size, max_rows, max_samples)
        arrays = {name: shared_zeros(length) for name, length in sizes.items()}
        try:
            self._begin(size, arrays)
        except OSError as error:
            self.close()
            reason = os.strerror(error.errno or 0).lower()
            raise ModelError(
                f"cannot compute with {size} processes: {reason}; let there be room "
                f"for them and in /dev/shm, or compute with one (--threads 1)"
            ) from error

    def __repr__(self) -> str:
        return f"<Crew of {len(self._mates) + 1} for {self._model!r}>"

    def forward(self, batch: Batch) -> F32:
        """Compute a step: store its keys and values, return the wanted logits.

        Returns:
            ``[len(sample_rows), vocab]``, float32.

        Raises:
            ModelError: A process of the crew ended meanwhile.
        """
        if self._mates and self._has_lost():
            self.close()
        if not self._mates:
            return self._model.forward(batch, self._store)
        own, *others = split(batch, len(self._mates) + 1)
        try:
            for mate, share in zip(self._mates, others, strict=True):
                mate.steps.send(share)
            with _blas.limit(limits=1):
                return self._model.compute(own, self._store, self._member).copy()
        except BaseException:
            # Who is in the middle of a step cannot begin the next one.
            log.error("engine_processes_ended effect=computes_alone")
            self.close()
            raise

    def close(self) -> None:
        """End the other processes."""
        for mate in self._mates:
            mate.steps.close()
            if _exit_code(mate.pid) is None:
                os.kill(mate.pid, signal.SIGKILL)
                # Where SIGCHLD is ignored, nobody is left to be waited for.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(mate.pid, 0)
        self._mates = []

    def _begin(self, size: int, arrays: dict[str, F32]) -> None:
        meeting = Meeting(size)

        def member(rank: int, check: Callable[[], None]) -> Member:
            meet = partial(meeting.wait, rank, check)
            return Member(partial(_take, arrays), meet, rank, size)

        for rank in range(1, size):
            self._mates.append(self._fork(member(rank, partial(_check, os.getpid()))))
        self._member = member(0, self._check_mates)

    def _fork(self, member: Member) -> _Mate:
        theirs, ours = Pipe(duplex=False)
        # What comes before the new process ignores it has to wait, not to end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python warns of threads, of which BLAS has some that end before it.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                self._work(theirs, member)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Mate(pid, ours)

    def _work(self, steps: Connection, member: Member) -> NoReturn:
        """Compute shares in a process of its own until nobody sends any."""
        code = 1
        try:
            # The first process ends the others, after it has ended in order itself.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.closerange(_FIRST_FD, steps.fileno())
            os.closerange(steps.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            with _blas.limit(limits=1):
                while True:
                    share: Share = steps.recv()
                    self._model.compute(share, self._store, member)
        except EOFError:
            code = 0
        except BaseException:
            log.exception("engine_process_failed")
        finally:
            os._exit(code)

    def _has_lost(self) -> bool:
        """Tell whether a process has ended, and forget it."""
        for mate in self._mates:
            code = _exit_code(mate.pid)
            if code is not None:
                log.error("engine_process_ended code=%s effect=computes_alone", code)
                mate.steps.close()
                self._mates.remove(mate)
                return True
        return False

    def _check_mates(self) -> None:
        if self._has_lost():
            raise ModelError(
                "a process of the engine has ended in the middle of a step"
            )


def _exit_code(child: int) -> int | str | None:
    """Forget a process that has ended and return its code; None while it runs.

    A process that inherited an ignored SIGCHLD is not told the codes of its children.
    """
    try:
        pid, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:
        return "unknown"
    return os.waitstatus_to_exitcode(status) if pid else None


def _check(parent: int) -> None:
    """End this process when the one that forked it is gone."""
    if os.getppid() != parent:
        os._exit(1)


def _take(arrays: dict[str, F32], name: str, *shape: int) -> F32:
    return arrays[name][: math.prod(shape)].reshape(shape)
