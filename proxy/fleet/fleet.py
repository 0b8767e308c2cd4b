"""All backends: their health, their restarts, and who may serve what.

Two sources speak of a backend: its prober and the traffic. Both end in its
vitals (alive or not) and its breaker (requests work or not); every change drops
the computed routes, so that the request path is one dictionary lookup.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from warmroute.adapters.base import Endpoint
from warmroute.adapters.registry import FALLBACK, adapters
from warmroute.policies.errors import ConfigError
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.config.backend import BackendConfig
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.fleet.lesson import learn
from warmroute.proxy.fleet.probe import Report
from warmroute.proxy.fleet.probers import Probers
from warmroute.proxy.fleet.routes import Routes

logger = logging.getLogger(__name__)

Hook = Callable[[Backend], None]


class Fleet:
    """Keep the backends, and answer which of them may take a request.

    Hooks are lists of callables that take the backend: *on_added* (after those
    given here, which are in *backends* already), *on_removed*, *on_restarted* (a
    new incarnation: its cache is empty), *on_facts* (engine, models, block size,
    capacity or event sources became known or changed) and *on_changed* (its state
    or its breaker).

    Args:
        backends: Those of the configuration; no network is touched before
            `start`.
        health: How to probe, and when a breaker opens.
        load: Gets a candidate for each incarnation of each backend.
        clock: Monotonic seconds.

    Raises:
        ConfigError: Two backends share a name, an engine is unknown, a
            certificate file is unreadable.
    """

    def __init__(
        self,
        backends: Sequence[BackendConfig],
        health: HealthConfig,
        load: FleetLoad,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backends: dict[str, Backend] = {}
        self.on_added: list[Hook] = []
        self.on_removed: list[Hook] = []
        self.on_restarted: list[Hook] = []
        self.on_facts: list[Hook] = []
        self.on_changed: list[Hook] = []
        self._health = health
        self._load = load
        self._clock = clock
        self._routes = Routes(self.backends, health, clock)
        self._probers = Probers(health, self._settle, clock)
        for config in backends:
            self.add(config)

    def __repr__(self) -> str:
        up = sum(one.state == "up" for one in self.backends.values())
        return f"<Fleet {up}/{len(self.backends)} up>"

    @property
    def is_ready(self) -> bool:
        """Whether some backend takes new requests."""
        return any(one.state == "up" for one in self.backends.values())

    async def start(self) -> None:
        """Begin probing; returns before any backend has answered."""
        self._probers.open()
        for backend in self.backends.values():
            self._probers.watch(backend)

    async def close(self) -> None:
        """Stop probing and close all control connections."""
        await self._probers.close()

    def add(self, config: BackendConfig) -> Backend:
        """Take in a backend; after `start`, probe it at once.

        Raises:
            ConfigError: The name is taken, or the engine unknown.
        """
        if config.name in self.backends:
            raise ConfigError(
                f"backend {config.name!r} exists already; give the new one another"
                " name, or remove the old one first"
            )
        engine = FALLBACK if config.engine == "auto" else config.engine
        adapter = adapters.get(engine)()
        backend = Backend(config, self._health, adapter, self._load)
        self.backends[config.name] = backend
        self._routes.forget()
        self._probers.watch(backend)
        self._call(self.on_added, backend)
        return backend

    def drain(self, name: str) -> None:
        """Give a backend no new requests; it stays probed."""
        backend = self.backends[name]
        if not backend.is_draining:
            backend.is_draining = True
            self._tell(backend, "backend_draining", "operator")

    async def remove(self, name: str) -> None:
        """Forget a backend; its running requests go on, unwatched."""
        await self._take_out(name)

    async def replace(self, config: BackendConfig) -> None:
        """Put a backend in the place of the one of its name, without a gap.

        Raises:
            ConfigError: As for `add`; the old one is gone all the same.
        """
        last_probe = self._take_out(config.name)
        self.add(config)
        await last_probe

    def configure_health(self, health: HealthConfig) -> None:
        """Take over changed settings; what was found out so far stays."""
        self._health = health
        self._routes.configure(health)
        for backend in self.backends.values():
            backend.configure_health(health)
        self._probers.configure(health, self.backends.values())

    def routable(self, model: str | None) -> list[Backend]:
        """Return the backends that may serve a model; never empty.

        The list is the same object until something changes, and is not to be
        changed. A dictionary lookup; O(backends) after a change.

        Raises:
            ClientError: 404 ``model_not_found`` if the models of all backends are
                known and none serves it, 503 ``no_healthy_backend`` if none is
                well.
        """
        return self._routes.find(model)

    def models(self) -> list[dict[str, object]]:
        """List the models of all backends that are not down, in OpenAI's shape."""
        return self._routes.models()

    def dispatched(self, backend: Backend) -> None:
        """Note that a request goes there, in the step that chose it; O(1).

        It takes the one trial that a half-open breaker offers.
        """
        if backend.is_unsure and backend.breaker.take(self._clock()):
            self._routes.forget()

    def progressed(self, backend: Backend) -> None:
        """Note that an answer moved on; O(1), for each chunk."""
        backend.vitals.progress_at = self._clock()
        if backend.is_unsure:
            backend.breaker.progress()
            self._reassess(backend)

    def succeeded(self, backend: Backend) -> None:
        """Note a good answer, below 400; O(1)."""
        backend.vitals.progress_at = self._clock()
        if backend.is_unsure:
            before = backend.breaker.state
            backend.breaker.succeed()
            self._tell_breaker(backend, before, "request succeeded")
            self._reassess(backend)

    def abandoned(self, backend: Backend) -> None:
        """Note an end without a verdict: a cancel, or a client's own error."""
        if backend.is_unsure and backend.breaker.abandon():
            self._routes.forget()

    def failed(self, backend: Backend, reason: str) -> None:
        """Note a failed request: no connection, a reset, a timeout, or a 5xx.

        Args:
            backend: Where it failed.
            reason: Word for the log; ``refused`` tells that nobody listens, and
                has the backend probed at once.
        """
        breaker = backend.breaker
        before = breaker.state
        may_open = not breaker.is_tripping() or self._routes.can_replace(backend)
        breaker.fail(self._clock(), may_open)
        backend.is_unsure = True
        self._tell_breaker(backend, before, reason)
        if reason == "refused":
            backend.vitals.refuse_traffic()
            self._probers.wake(backend.name)

    def reborn(self, backend: Backend) -> None:
        """Note that its events prove a new process, whether a probe sees one or not.

        The probe that meets the same new process does not count it again.
        """
        if self.backends.get(backend.name) is backend:
            backend.vitals.foresee_restart()
            self._restart(backend)

    def endpoint(self, backend: Backend) -> Endpoint | None:
        """Return where a backend takes control calls; None while it is not probed."""
        return self._probers.endpoint(backend.name)

    def abort(self, backend: Backend, request_id: str) -> None:
        """Have the engine stop a request by its id, where it can; not awaited."""
        self._probers.abort(backend, request_id)

    def _take_out(self, name: str) -> Awaitable[object]:
        backend = self.backends.pop(name)
        self._routes.forget()
        for candidate in backend.candidates:
            self._load.remove(candidate.name)
        self._call(self.on_removed, backend)
        return self._probers.forget(name)

    def _settle(self, backend: Backend, report: Report) -> None:
        vitals = backend.vitals
        before = vitals.life
        if report.ready:
            self._pass(backend, report)
        else:
            vitals.fail_probe(self._clock(), report.refused)
        backend.is_unsure = vitals.life != "up" or not backend.breaker.is_calm()
        if vitals.life != before:
            reason = report.detail or "probe passed"
            self._tell(backend, f"backend_{vitals.life}", reason)

    def _pass(self, backend: Backend, report: Report) -> None:
        was_mixed = backend.vitals.is_mixed
        is_fresh = report.incarnation == backend.incarnation
        if backend.vitals.pass_probe(report.boot_id, is_fresh):
            self._restart(backend)
        if backend.vitals.is_mixed and not was_mixed:
            logger.warning("backend_address_shared", extra={"backend": backend.name})
        self._learn(backend, report)
        before = backend.breaker.state
        backend.breaker.passed()
        self._tell_breaker(backend, before, "probe passed")

    def _restart(self, backend: Backend) -> None:
        backend.begin_incarnation(self._health, self._load)
        self._routes.forget()
        logger.warning(
            "backend_restarted",
            extra={"backend": backend.name, "incarnation": backend.incarnation},
        )
        self._call(self.on_restarted, backend)
        self._probers.wake(backend.name)

    def _learn(self, backend: Backend, report: Report) -> None:
        lesson = learn(backend, report, self._load)
        if lesson.changes_routes:
            self._routes.forget()
        if lesson.is_news:
            self._call(self.on_facts, backend)

    def _reassess(self, backend: Backend) -> None:
        if backend.vitals.life == "up":
            backend.is_unsure = not backend.breaker.is_calm()
        else:
            self._probers.wake(backend.name)

    def _tell_breaker(self, backend: Backend, before: str, reason: str) -> None:
        state = backend.breaker.state
        if state != before:
            self._tell(backend, f"breaker_{state}", reason)

    def _tell(self, backend: Backend, event: str, reason: str) -> None:
        is_bad = event in ("backend_down", "breaker_open")
        level = logging.WARNING if is_bad else logging.INFO
        logger.log(level, event, extra={"backend": backend.name, "reason": reason})
        self._routes.forget()
        self._call(self.on_changed, backend)

    def _call(self, hooks: Sequence[Hook], backend: Backend) -> None:
        for hook in hooks:
            try:
                hook(backend)
            except Exception:  # one listener's fault must not stop the others
                logger.exception("hook_failed", extra={"backend": backend.name})
