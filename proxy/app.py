"""The composition root: builds every part, runs them, and takes them down.

Nothing else in the proxy knows how the parts find each other.
"""

import asyncio
import contextlib
import importlib.util
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

from aiohttp import web

from warmroute.policies.errors import ConfigError
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import build
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy import logs
from warmroute.proxy.admin import make_admin
from warmroute.proxy.admin_state import AdminState, IndexFacts, Learned, ReloadStatus
from warmroute.proxy.backend import Backend
from warmroute.proxy.config import Config, backend_config, changed_listeners
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.metrics import Exposition, build_registry
from warmroute.proxy.port import DataPort
from warmroute.proxy.process import raise_file_limit, server_tls, tune_allocator
from warmroute.proxy.prompt import PromptReader
from warmroute.proxy.router import Router
from warmroute.proxy.telemetry import build_tracer
from warmroute.proxy.view import View

logger = logging.getLogger(__name__)

_WATCH_S = 2.0

Loader = Callable[[], Config]


class App:
    """One warmroute process.

    Args:
        config: What to run.
        load: Reads the configuration again, for reloads; raises ConfigError.
    """

    def __init__(self, config: Config, load: Loader) -> None:
        self.config = config
        self._load = load
        self.reloads = ReloadStatus()
        self.index = PrefixIndex(config.index.max_bytes)
        self.view = View(self.index)
        self.ledger = Ledger(config.decisions.records, config.decisions.max_bytes)
        self.load = FleetLoad()
        self.fleet = Fleet(config.backends, config.health, self.load)
        self.prompts = PromptReader(config.models)
        self.router = Router(
            self.fleet,
            self.view,
            self.load,
            build(config.policy.name, config.policy.options),
            self.prompts,
            self.ledger,
        )
        tracing = config.tracing
        self.tracer = build_tracer(
            tracing.endpoint if tracing else None,
            tracing.sample if tracing else 1.0,
            version=version("warmroute"),
            scheme="https" if config.tls else "http",
            host=config.listen.host,
            port=config.listen.port,
        )
        self.port = DataPort(config, self.fleet, self.router, self.ledger, self.tracer)
        self._admin: web.AppRunner | None = None
        self.listening: tuple[str, int] | None = None
        self.administering: tuple[str, int] | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._connect_parts()

    def __repr__(self) -> str:
        return f"<App {self.fleet!r} {self.port!r}>"

    def _connect_parts(self) -> None:
        fleet = self.fleet
        fleet.on_added.append(self._added)
        fleet.on_removed.append(self._removed)
        fleet.on_restarted.append(lambda backend: self.view.wipe(backend.name))
        fleet.on_facts.append(self._learned_facts)
        for backend in fleet.backends.values():
            self._added(backend)

    def _added(self, backend: Backend) -> None:
        self.view.add_backend(backend.name, backend.block_size)
        self.ledger.know_models(backend.models)

    def _removed(self, backend: Backend) -> None:
        self.view.remove_backend(backend.name)
        self.port.forget(backend)
        self.ledger.forget_backend(backend.name)

    def _learned_facts(self, backend: Backend) -> None:
        self.view.configure(
            backend.name,
            block_size=backend.block_size,
            capacity_tokens=backend.capacity_tokens,
        )
        self.ledger.know_models(backend.models)

    # lifecycle

    async def start(self) -> None:
        """Listen, then look for the backends; none of them can delay this."""
        config = self.config
        tls = server_tls(config.tls) if config.tls is not None else None
        self.listening = await self.port.start(
            config.listen.host, config.listen.port, tls
        )
        if config.admin is not None:
            await self._start_admin(config.admin.host, config.admin.port)
        await self.fleet.start()
        logger.info(
            "started",
            extra={
                "listen": "{}:{}".format(*self.listening),
                "admin": "{}:{}".format(*(self.administering or ("off", ""))),
                "policy": config.policy.name,
                "backends": len(self.fleet.backends),
                "version": version("warmroute"),
            },
        )

    async def _start_admin(self, host: str, port: int) -> None:
        runner = web.AppRunner(
            make_admin(self._admin_state(host)), access_log=None, handle_signals=False
        )
        await runner.setup()
        self._admin = runner
        await web.TCPSite(runner, host, port).start()
        address = runner.addresses[0]
        self.administering = (address[0], address[1])

    def _admin_state(self, host: str) -> AdminState:
        token = self.config.admin_token
        return AdminState(
            version=version("warmroute"),
            ledger=self.ledger,
            fleet=self.fleet,
            view=self.view,
            explain=lambda *asked: self.router.explain(*asked).explained(),
            registry=build_registry(
                Exposition(
                    self.ledger,
                    self.fleet,
                    self.view,
                    self._index_facts,
                    self.reloads,
                    version("warmroute"),
                )
            ),
            index=self._index_facts,
            policy=lambda: self.router.policy.name,
            is_ready=lambda: self.fleet.is_ready and not self.port.own.is_draining,
            add_backend=self._add_backend,
            reload=self.reload,
            learned=self._learned,
            host=host,
            token=token.get_secret_value() if token is not None else None,
        )

    def _index_facts(self) -> IndexFacts:
        return IndexFacts(**self.view.stats())

    def _learned(self, name: str) -> Learned:
        candidate = self.fleet.backends[name].candidate
        return Learned(candidate.rate, candidate.itl_s)

    def _add_backend(self, entry: Mapping[str, Any]) -> str:
        config = backend_config(entry)
        self.fleet.add(config)
        return config.name

    async def run(self) -> int:
        """Serve until a signal says otherwise; returns the exit code."""
        await self.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_on_signal)
        watcher = asyncio.create_task(self._watch())
        try:
            await self._stopping.wait()
            await self._drain()
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
            await self.close()
        return 0

    def stop(self) -> None:
        """Begin to drain; the second call ends at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def _drain(self) -> None:
        drain = self.config.drain
        self.port.own.is_draining = True
        logger.info(
            "drain_started",
            extra={"delay_s": drain.delay_s, "at_most": drain.timeout_s},
        )
        # Load balancers learn of the end later than we do: go on accepting.
        if await self._unless_hurried(self._hurry.wait(), drain.delay_s):
            return
        self.port.refuse_new()
        await self._unless_hurried(self.port.drained(drain.timeout_s), None)

    async def _unless_hurried(
        self, waiting: Awaitable[Any], timeout_s: float | None
    ) -> bool:
        tasks = [
            asyncio.ensure_future(waiting),
            asyncio.ensure_future(self._hurry.wait()),
        ]
        await asyncio.wait(
            tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self._hurry.is_set()

    async def close(self) -> None:
        """Take everything down; what is still being answered is cut short."""
        self.port.close()
        if self._admin is not None:
            await self._admin.cleanup()
        await self.fleet.close()
        if self.tracer is not None:
            await self.tracer.close()
        logger.info("stopped")

    # reload

    def _reload_on_signal(self) -> None:
        self._reloading = asyncio.create_task(self._reload_quietly())

    async def _reload_quietly(self) -> None:
        with contextlib.suppress(ConfigError):
            await self.reload()

    async def _watch(self) -> None:
        known = self.config.modified()
        while True:
            await asyncio.sleep(_WATCH_S)
            modified = self.config.modified()
            if self.config.reload.watch and modified != known:
                known = modified
                await self._reload_quietly()

    async def reload(self) -> None:
        """Take over a changed file, all of it or nothing.

        Raises:
            ConfigError: Every error of the file, or listeners that were changed.
        """
        try:
            config = self._load()
            changed = changed_listeners(self.config, config)
            if changed:
                raise ConfigError(
                    f"{', '.join(changed)}: cannot change while running; restart "
                    "to take this over"
                )
            policy = build(config.policy.name, config.policy.options)
        except ConfigError as error:
            self.reloads.failed()
            logger.error("reload_refused", extra={"error": str(error)})
            raise
        if config.policy != self.config.policy:
            self.router.policy = policy
        self.config = config
        self.port.configure(config)
        self.index.max_bytes = config.index.max_bytes
        self.prompts.configure(config.models)
        await self._reconcile(config)
        logs.configure(config.log.level, config.log.format, sys.stdout)
        self.reloads.succeeded()
        logger.info("reloaded", extra={"backends": len(self.fleet.backends)})

    async def _reconcile(self, config: Config) -> None:
        """Bring the fleet to what the file says; unchanged backends stay warm."""
        wanted = {one.name: one for one in config.backends}
        for name, backend in list(self.fleet.backends.items()):
            if wanted.get(name) != backend.config:
                await self.fleet.remove(name)
        for name, one in wanted.items():
            if name not in self.fleet.backends:
                self.fleet.add(one)


def run(config: Config, load: Loader) -> int:
    """Run warmroute until SIGTERM or SIGINT; returns the exit code."""
    logs.configure(config.log.level, config.log.format, sys.stdout)
    tune_allocator()
    raise_file_limit(config.limits.connections)
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(config, load))


async def _serve(config: Config, load: Loader) -> int:
    try:
        return await App(config, load).run()
    except OSError as error:
        logger.error("start_failed", extra={"error": str(error)})
        return 1
