"""Which backends may take a request for a model: computed once, then looked up."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from warmroute.policies.errors import ClientError
from warmroute.policies.registry import explain_unknown
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet.backend import Backend

logger = logging.getLogger(__name__)

MAX_CACHED: Final = 1024
MAX_SHOWN: Final = 20
MAX_NAME: Final = 128
INFINITY: Final = math.inf


class Routes:
    """Find the backends that may serve a model, best health first.

    Those that are up with a closed breaker, or one that offers a trial, are the
    answer. Is there none, an open breaker is better than a refusal, so that the
    last backend of a model is never taken away; then one that is only starting.

    Args:
        backends: The fleet's own mapping, read at each computation.
        health: A client is told to wait for a probe when nobody can serve.
        clock: Monotonic seconds; only read while a breaker is open.
    """

    __slots__ = ("_backends", "_cache", "_clock", "_retry_after_s", "_stale_at")

    def __init__(
        self,
        backends: Mapping[str, Backend],
        health: HealthConfig,
        clock: Callable[[], float],
    ) -> None:
        self._stale_at = INFINITY
        self._backends = backends
        self._clock = clock
        self._cache: dict[str | None, list[Backend]] = {}
        self.configure(health)

    def __repr__(self) -> str:
        return f"<Routes {len(self._cache)} cached, {len(self._backends)} backends>"

    def configure(self, health: HealthConfig) -> None:
        """Take over how often backends are probed."""
        self._retry_after_s = max(1, math.ceil(health.interval_s))

    def forget(self) -> None:
        """Drop what was computed: a backend changed."""
        self._cache.clear()
        self._stale_at = INFINITY

    def find(self, model: str | None) -> list[Backend]:
        """Return the backends for a model; never empty, not to be changed.

        A dictionary lookup, and O(backends) after each change of the fleet.

        Raises:
            ClientError: 404 if no backend serves the model, 503 if none is well.
        """
        if self._stale_at != INFINITY and self._stale_at <= self._clock():
            self.forget()
        found = self._cache.get(model)
        return self._compute(model) if found is None else found

    def can_replace(self, backend: Backend) -> bool:
        """Tell whether another backend could take over some of its requests."""
        return any(
            _is_well(other) and _share_model(other, backend)
            for other in self._backends.values()
            if other is not backend
        )

    def models(self) -> list[dict[str, object]]:
        """List what can be asked for, in OpenAI's shape: the union of cards.

        Where backends differ in a model's length, the shortest is told.
        """
        union: dict[str, dict[str, object]] = {}
        for backend in self._backends.values():
            if backend.vitals.life == "down":
                continue
            for card in backend.models.values():
                shown = union.setdefault(card.id, dict(card.raw))
                known = shown.get("max_model_len")
                if isinstance(known, int) and card.max_model_len is not None:
                    shown["max_model_len"] = min(known, card.max_model_len)
        return list(union.values())

    def _compute(self, model: str | None) -> list[Backend]:
        serving = [one for one in self._backends.values() if one.serves(model)]
        if not serving and self._backends:
            raise self._unknown(str(model))
        found = self._takers(serving, self._clock())
        if not found:
            raise self._unwell(model, serving)
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[model] = found
        return found

    def _takers(self, serving: Iterable[Backend], now: float) -> list[Backend]:
        takers = [one for one in serving if not one.is_draining]
        up = [one for one in takers if one.vitals.life == "up"]
        for backend in up:
            self._offer_trial(backend, now)
        return (
            [one for one in up if one.breaker.admits(now)]
            or up
            or [one for one in takers if one.vitals.life == "starting"]
        )

    def _offer_trial(self, backend: Backend, now: float) -> None:
        breaker = backend.breaker
        if breaker.offer(now):
            logger.info("breaker_half_open", extra={"backend": backend.name})
        if breaker.state != "closed" and breaker.until > now:
            self._stale_at = min(self._stale_at, breaker.until)

    def _unknown(self, model: str) -> ClientError:
        known = sorted({id for one in self._backends.values() for id in one.models})
        shown = known[:MAX_SHOWN]
        more = f", and {len(known) - MAX_SHOWN} more" if len(known) > MAX_SHOWN else ""
        message = explain_unknown("model", model[:MAX_NAME], shown)
        return ClientError(
            404,
            "model_not_found",
            f"{message}{more}; ask for one that GET /v1/models lists, or start a"
            " backend that serves it",
        )

    def _unwell(self, model: str | None, serving: list[Backend]) -> ClientError:
        wanted = "" if model is None else f" for model {model[:MAX_NAME]!r}"
        states = ", ".join(_states(serving)) or "none configured"
        return ClientError(
            503,
            "no_healthy_backend",
            f"no healthy backend{wanted} ({states}); retry later",
            self._retry_after_s,
        )


def _is_well(backend: Backend) -> bool:
    return backend.state == "up" and backend.breaker.state == "closed"


def _share_model(one: Backend, other: Backend) -> bool:
    if not one.models or not other.models:
        return True
    return not one.models.keys().isdisjoint(other.models)


def _states(backends: Iterable[Backend]) -> Iterator[str]:
    counts: dict[str, int] = {}
    for backend in backends:
        counts[backend.state] = counts.get(backend.state, 0) + 1
    return (f"{count} {state}" for state, count in counts.items())
