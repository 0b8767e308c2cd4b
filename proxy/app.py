"""The composition root: builds every part, runs them, and takes them down.

Nothing else in the proxy knows how the parts find each other.
"""

import asyncio
import logging
import signal
import ssl
import sys
import time
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version

from warmroute.adapters.stopping import Stopping
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import build
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy import logs, router
from warmroute.proxy.administration import Administration
from warmroute.proxy.config import Address, Config
from warmroute.proxy.counters import Counters
from warmroute.proxy.deciding import Deciding
from warmroute.proxy.draining import drain
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.kv.steering import Steering
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.onlookers import Onlookers
from warmroute.proxy.port import DataPort
from warmroute.proxy.process import (
    find_loop,
    listening,
    load_certificate,
    raise_file_limit,
    server_tls,
    tune_allocator,
    tune_collector,
)
from warmroute.proxy.prompt import PromptReader
from warmroute.proxy.reload import Commit, Loader, Reloader, reconcile
from warmroute.proxy.router import Router
from warmroute.proxy.sources import Sources
from warmroute.proxy.telemetry import Tracer
from warmroute.proxy.telemetry.configured import tracer_of
from warmroute.proxy.view import View

logger = logging.getLogger(__name__)

# For last bytes to leave, and for spans to be exported.
_FAREWELL_S = 1.0
_FLUSH_S = 3.0


class App:
    """One warmroute process.

    Args:
        config: What to run.
        load: Reads the configuration again, for reloads; raises ConfigError.
        clock: Monotonic seconds, for what is decided of requests and backends.
    """

    def __init__(
        self,
        config: Config,
        load: Loader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.reloader = Reloader(config, load, self._prepare)
        self.index = PrefixIndex(config.index.max_bytes)
        self.view = View(self.index, clock)
        self.ledger = Ledger(config.decisions.records, config.decisions.max_bytes)
        self.load = FleetLoad()
        self.fleet = Fleet(config.backends, config.health, self.load, clock=clock)
        self.prompts = PromptReader(config.models)
        self.router = Router(
            self.fleet,
            self.view,
            self.load,
            build(config.policy.name, config.policy.options),
            self.prompts,
            self.ledger,
            clock=clock,
        )
        self.tracer = tracer_of(config)
        self.port = DataPort(
            config, self.fleet, self.router, self.ledger, self.tracer, clock
        )
        self.deciding = Deciding(self.router, self.port, self.ledger, config.policy)
        self.sources = Sources(self.fleet, self.view, self.index, self.router)
        self.onlookers = Onlookers(self.router, self.port)
        self.steering = Steering(
            self.fleet, self.view, self.index, self.router, config.conductor
        )
        self.counters = Counters(self.fleet, self.ledger, self.view)
        self.administration = Administration(self)
        self._tls: ssl.SSLContext | None = None
        self.listening: tuple[str, int] | None = None
        self.stopping = Stopping()
        self._connect_parts()

    def __repr__(self) -> str:
        return f"<App {self.fleet!r} {self.port!r}>"

    def _connect_parts(self) -> None:
        fleet = self.fleet
        fleet.on_added.append(self._added)
        fleet.on_removed.append(self._removed)
        fleet.on_restarted.append(self._restarted)
        fleet.on_facts.append(self._learned_facts)
        fleet.on_changed.append(self._changed)
        for backend in fleet.backends.values():
            self._added(backend)
        self.sources.configure(self.sources.read(self.config.models))

    def _changed(self, backend: Backend) -> None:
        self._know_models(backend)
        self.sources.changed(backend)
        self.steering.changed(backend)

    def _know_models(self, backend: Backend) -> None:
        self.ledger.know_models(backend.models)
        self.prompts.roots.learn(one.models for one in self.fleet.backends.values())

    def _added(self, backend: Backend) -> None:
        self.view.add_backend(backend.name, backend.block_size)
        self._know_models(backend)

    def _restarted(self, backend: Backend) -> None:
        self.view.wipe(backend.name)
        self.sources.restarted(backend)
        self.steering.restarted(backend)

    def _removed(self, backend: Backend) -> None:
        self.sources.removed(backend)
        self.steering.removed(backend)
        self.view.remove_backend(backend.name)
        self.port.forget(backend)
        self.ledger.forget_backend(backend.name)

    def _learned_facts(self, backend: Backend) -> None:
        self.view.configure(
            backend.name,
            block_size=backend.block_size,
            capacity_tokens=backend.capacity_tokens,
            seats=[one.name for one in backend.candidates],
        )
        self._know_models(backend)
        self.sources.learned(backend)

    # lifecycle

    async def start(self) -> None:
        """Listen, then look for the backends; none of them can delay this."""
        config = self.config
        listen = config.listen
        self._tls = server_tls(config.tls) if config.tls is not None else None
        await self.onlookers.configure(config)
        with listening("listen", listen):
            self.listening = await self.port.start(listen.host, listen.port, self._tls)
        if config.admin is not None:
            await self.administration.start(config.admin, config.admin_token)
        self.sources.start()
        self.counters.start()
        await self.fleet.start()
        self.steering.start()
        logger.info(
            "started",
            extra={
                "listen": str(Address(*self.listening)),
                "admin": str(self.administration),
                "policy": config.policy.name,
                "backends": len(self.fleet.backends),
                "version": version("warmroute"),
                "compiled": router.__file__.endswith(tuple(EXTENSION_SUFFIXES)),
            },
        )

    async def run(self) -> int:
        """Serve until a signal says otherwise; returns the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.reloader.request)
        with self.stopping.on_signals():
            watcher = asyncio.create_task(self.reloader.watch())
            try:
                await self.start()
                tune_collector()
                await self.stopping.asked()
                await drain(self.port, self.config.drain, self.stopping)
            finally:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)
                await self.close()
        return 0

    async def close(self) -> None:
        """Take everything down; what is still being answered is cut short."""
        is_hurried = self.stopping.is_hurried
        await self.reloader.close()
        self.port.close()
        if not is_hurried:
            await self.port.drained(_FAREWELL_S)
        await self.administration.close()
        await self.steering.close()
        await self.counters.close()
        await self.sources.close()
        await self.fleet.close()
        await self.onlookers.close(is_hurried=is_hurried)
        if self.tracer is not None:
            await self.tracer.close(0.1 if is_hurried else _FLUSH_S)
        logger.info("stopped")

    # reload

    def _prepare(self, config: Config) -> Commit:
        """Build what can fail of a new configuration; see `Reloader`."""
        old = self.config
        decide = self.deciding.prepare(config.policy)
        fresh = [one for one in config.backends if one not in old.backends]
        Fleet(fresh, config.health, FleetLoad())
        if config.tls is not None:
            server_tls(config.tls)
        models = self.sources.read(config.models)
        tracer = self.tracer
        if config.tracing != old.tracing:
            tracer = tracer_of(config)

        async def commit() -> None:
            self.config = config
            decide()
            self._configure(old, config)
            await reconcile(self.fleet, config.backends)
            self.sources.configure(models)
            await self.steering.configure(config.conductor)
            await self._trace_by(tracer)
            await self.onlookers.configure(config)

        return commit

    def _configure(self, old: Config, config: Config) -> None:
        logs.configure(config.log.level, config.log.format, sys.stdout)
        raise_file_limit(config.limits.connections)
        self.port.configure(config)
        self.index.max_bytes = config.index.max_bytes
        self.prompts.configure(config.models)
        self.ledger.configure(config.decisions.records, config.decisions.max_bytes)
        if config.health != old.health:
            self.fleet.configure_health(config.health)
        if self._tls is not None and config.tls is not None:
            load_certificate(self._tls, config.tls)

    async def _trace_by(self, tracer: Tracer | None) -> None:
        old, self.tracer = self.tracer, tracer
        self.port.tracer = tracer
        if old is not None and old is not tracer:
            await old.close(_FLUSH_S)


def run(config: Config, load: Loader) -> int:
    """Run warmroute until SIGTERM or SIGINT; returns the exit code.

    Raises:
        WarmrouteError: A listener's address cannot be used.
        ConfigError: A file that the configuration names cannot be used.
    """
    logs.configure(config.log.level, config.log.format, sys.stdout)
    tune_allocator()
    raise_file_limit(config.limits.connections)
    with asyncio.Runner(loop_factory=find_loop()) as runner:
        return runner.run(_serve(config, load))


async def _serve(config: Config, load: Loader) -> int:
    return await App(config, load).run()
