"""The KV control of every backend, and what each answers for."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from warmroute.adapters.kv_client import MAX_REASON
from warmroute.adapters.kv_control import VERBS, KVControl
from warmroute.adapters.kv_requests import Request
from warmroute.policies.errors import (
    AdapterError,
    BackendUnavailable,
    ClientError,
    WarmrouteError,
)
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend

logger = logging.getLogger(__name__)

CALL_S = 30.0
"""Bound of one verb, connect to last byte: moves go in slices behind running steps."""

UNASKED = "the engine has not been asked yet"
_AGAIN_S = 5.0
_MAX_ANSWER_BYTES = 64 * 1024 * 1024  # a snapshot of a large pool, with its tokens

Verbs = Mapping[str, bool | str]


class _Asked:
    """What one incarnation of a backend answered, and when it was asked."""

    __slots__ = ("at", "is_known", "mark", "verbs")

    def __init__(self, mark: tuple[object, ...], at: float) -> None:
        self.mark = mark
        self.at = at
        self.is_known = False
        self.verbs: Verbs = dict.fromkeys(VERBS, UNASKED)


class Controls:
    """Find the levers of backends, and remember which of them work.

    An engine is asked once an incarnation, in the background; one that does not
    answer is asked again when somebody wants to know, at most every 5 s.

    Args:
        fleet: The backends.
        clock: Monotonic seconds.
    """

    __slots__ = ("_asked", "_clock", "_fleet", "_tasks")

    def __init__(
        self, fleet: Fleet, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Controls of {list(self._asked)}>"

    def of(self, backend: Backend) -> KVControl:
        """Return the levers of a backend; asks nothing.

        Raises:
            BackendUnavailable: It is not watched yet.
            ClientError: 501, its adapter has none.
        """
        endpoint = self._fleet.endpoint(backend)
        if endpoint is None:
            raise BackendUnavailable(f"backend {backend.name} is not being probed yet")
        make = getattr(backend.adapter, "kv_control", None)
        if make is None:
            raise ClientError(
                501,
                "kv_verb_unsupported",
                f"the adapter {backend.adapter.name!r} offers no KV control",
            )
        control: KVControl = make(endpoint.allowing(_MAX_ANSWER_BYTES, CALL_S))
        return control

    def facts(self, name: str) -> Verbs:
        """Return for each verb that it works, or why not; for ``/api/state``."""
        backend = self._fleet.backends.get(name)
        if backend is None:
            return dict.fromkeys(VERBS, UNASKED)
        self.changed(backend)
        asked = self._asked.get(name)
        return dict.fromkeys(VERBS, UNASKED) if asked is None else asked.verbs

    def can(self, name: str, verb: str) -> bool:
        """Tell whether a backend has answered that a verb works."""
        return self.facts(name).get(verb) is True

    def changed(self, backend: Backend) -> None:
        """Ask a backend that may be another one now; needs a running loop."""
        if backend.state not in ("up", "draining"):
            return
        mark = (backend.incarnation, backend.adapter.name, backend.url)
        asked, now = self._asked.get(backend.name), self._clock()
        is_same = asked is not None and asked.mark == mark
        if asked and is_same and (asked.is_known or now - asked.at < _AGAIN_S):
            return
        fresh = self._asked[backend.name] = _Asked(mark, now)
        task = asyncio.get_running_loop().create_task(self._ask(backend, fresh))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def removed(self, backend: Backend) -> None:
        """Forget a backend that is gone."""
        self._asked.pop(backend.name, None)

    async def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, backend: Backend, asked: _Asked) -> None:
        try:
            told = await self.of(backend).capabilities(Request())
            asked.verbs = {verb: _reason(told.verbs.get(verb)) for verb in VERBS}
            asked.is_known = True
        except AdapterError as error:
            asked.verbs = dict.fromkeys(VERBS, f"the engine did not tell: {error}")
        except WarmrouteError as error:
            asked.verbs = dict.fromkeys(VERBS, str(error))
            asked.is_known = not _is_passing(error)
        except Exception:  # an adapter is a plugin and may raise anything
            logger.exception("kv_capabilities_failed", extra={"backend": backend.name})
            asked.verbs = dict.fromkeys(VERBS, "its adapter failed; see the log")
            asked.is_known = True


def _reason(answer: bool | str | None) -> bool | str:
    if answer is None:
        return UNASKED
    return answer[:MAX_REASON] if isinstance(answer, str) else answer


def _is_passing(error: WarmrouteError) -> bool:
    """Tell whether an engine could not tell now, and may later."""
    if not isinstance(error, ClientError):
        return False
    return error.status >= 500 and error.status != 501
