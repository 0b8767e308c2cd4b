"""The engine's process: compose, serve until a signal, end in order."""

import argparse
import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from importlib.metadata import version

from aiohttp import web

from warmroute.adapters.caller import is_loopback
from warmroute.adapters.embedded.budget.rules import TokenRules
from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.model.crew import default_size
from warmroute.adapters.embedded.model.loading import LoadedModel, load_model
from warmroute.adapters.embedded.server.app import build_app
from warmroute.adapters.embedded.server.block_names import BlockNames
from warmroute.adapters.embedded.server.control import add_control_routes
from warmroute.adapters.embedded.server.door import TOKEN_VARIABLE, Door
from warmroute.adapters.embedded.server.event_log import EventLog
from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.embedded.server.kv_verbs import EngineKVControl
from warmroute.adapters.embedded.server.listener import DRAIN_S, Listener
from warmroute.adapters.embedded.server.metrics import RANK, EngineMetrics
from warmroute.adapters.embedded.server.serving import Serving
from warmroute.adapters.stopping import Stopping

_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

logger = logging.getLogger(__name__)


def run_engine(options: argparse.Namespace) -> int:
    """Serve by the options of the command line; returns the exit code.

    The address is taken before the model is loaded, which takes seconds.

    Raises:
        ConfigError: An option cannot be used.
        PolicyError: No such eviction policy.
        WarmrouteError: Address or model cannot be used.
    """
    logging.basicConfig(
        level=options.log_level.upper(), format=_LOG_FORMAT, stream=sys.stderr
    )
    settings = read_settings(options)
    listener = Listener(options.host, options.port)
    try:
        loaded = load_model(options.model)
        asyncio.run(EngineProcess(options, settings, loaded, listener).run())
    finally:
        listener.release()
    return 0


def read_settings(options: argparse.Namespace) -> EngineOptions:
    """Return the engine's settings.

    Raises:
        ConfigError: They do not fit together.
    """
    return EngineOptions(
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_batched_tokens=options.max_batched_tokens,
        max_shared_tokens=options.max_shared_tokens,
        eviction=options.eviction,
        host_blocks=options.host_blocks,
        max_model_len=options.max_model_len,
        threads=options.threads or default_size(),
    )


class EngineProcess:
    """One engine behind one address.

    Args:
        options: The command line.
        settings: The engine's settings in it.
        loaded: The model.
        listener: The address, bound.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        settings: EngineOptions,
        loaded: LoadedModel,
        listener: Listener,
    ) -> None:
        self._options = options
        self._listener = listener
        names = tuple(options.served_model_name or [loaded.name])
        self._publisher: KVEventPublisher | None = None
        events: EventLog | None = None
        if options.kv_events:
            self._publisher = KVEventPublisher(
                options.kv_events,
                options.kv_events_replay,
                options.kv_events_topic,
                interface=_interface(options.host),
            )
            events = EventLog(self._publisher, settings.block_size)
        self._metrics = EngineMetrics(names[0])
        self._engine = Engine(
            loaded,
            settings,
            observer=self._metrics,
            kv_observer=events,
            rules=TokenRules(),
        )
        self._loaded = loaded
        self._names = names

    async def run(self) -> None:
        """Serve until a signal, then drain; a second signal aborts what runs.

        Raises:
            WarmrouteError: An address cannot be used.
        """
        stopping = Stopping()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._listener.close)
            if self._publisher is not None:
                self._publisher.start()
                stack.callback(self._publisher.close)
            await self._engine.start()
            stack.push_async_callback(self._engine.close)
            await self._listener.start(await self._build())
            with stopping.on_signals():
                self._announce()
                await stopping.asked()
                logger.info("engine_stopping")
                await self._listener.stop_accepting()
                await stopping.unless_hurried(self._engine.drain(DRAIN_S))
                await self._engine.close()
                await self._listener.close()

    async def _build(self) -> web.Application:
        sources = {}
        if self._publisher is not None:
            sources[RANK] = self._publisher.source()
        serving = Serving(
            self._engine,
            self._loaded.tokenizer,
            self._names,
            version("warmroute"),
            sources,
        )
        app = build_app(serving, self._metrics)
        root = await self._engine.call(lambda state: state.root)
        names = BlockNames(serving, self._options.block_size, root)
        control = EngineKVControl(
            self._engine, names, self._publisher, has_budgets=True
        )
        door = Door(self._options.host, os.environ.get(TOKEN_VARIABLE))
        add_control_routes(app, control, door)
        return app

    def _announce(self) -> None:
        """Print the line that tells people and scripts that it is ready."""
        settings = self._engine.options
        tokens = settings.num_blocks * settings.block_size
        size_mib = tokens * _token_bytes(self._loaded) / 2**20
        events = f", KV events on {self._publisher.endpoint}" if self._publisher else ""
        sys.stdout.write(
            f"warmroute engine: {self._listener.url} serves {', '.join(self._names)}: "
            f"{settings.num_blocks} blocks of {settings.block_size} ({tokens} tokens, "
            f"{size_mib:.0f} MiB), context {self._engine.limits.max_model_len}, "
            f"eviction {settings.eviction}{events}\n"
        )
        sys.stdout.flush()


def _token_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of keys and values of one token, in float32."""
    config = loaded.model.config
    return 2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim


def _interface(host: str) -> str:
    """Return what ``*`` means: no more than who may ask the engine itself."""
    if not is_loopback(host):
        return "*"
    return "[::1]" if ":" in host else "127.0.0.1"
