"""Reloading: a changed configuration is taken over as a whole, or not at all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from warmroute.policies.errors import ConfigError, WarmrouteError
from warmroute.proxy.admin.state import ReloadStatus
from warmroute.proxy.config import (
    BackendConfig,
    Config,
    changed_listeners,
    differences,
)
from warmroute.proxy.fleet import Fleet

logger = logging.getLogger(__name__)

WATCH_S = 2.0

Loader = Callable[[], Config]
Commit = Callable[[], Awaitable[None]]

# Besides the listeners: read once, when their owners are built.
_FIXED = ("admin_token",)


class Reloader:
    """Load the configuration again: when asked, by signal, or once it changed.

    Reloads run one after the other. What an error leaves in force is the old
    configuration, all of it.

    Args:
        config: What is in force.
        load: Reads the configuration again; raises ConfigError. Runs in a thread.
        prepare: Builds all that can fail of a new configuration, changes nothing,
            and returns what puts it in force.
    """

    __slots__ = ("_config", "_known", "_load", "_lock", "_prepare", "_tasks", "status")

    def __init__(
        self, config: Config, load: Loader, prepare: Callable[[Config], Commit]
    ) -> None:
        self.status = ReloadStatus()
        self._config = config
        self._known = config.modified()
        self._load = load
        self._prepare = prepare
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Reloader {'good' if self.status.is_good else 'refused'}>"

    async def reload(self) -> None:
        """Take over the configuration as it is now.

        Raises:
            ConfigError: Every error in it, or a change that needs a restart.
        """
        async with self._lock:
            self._known = self._config.modified() or self._known
            try:
                config = await asyncio.to_thread(self._load)
                _refuse_fixed(self._config, config)
                commit = self._prepare(config)
            except WarmrouteError as error:
                self.status.failed()
                logger.error("reload_refused", extra={"error": str(error)})
                raise ConfigError(str(error)) from error
            changes = differences(self._config, config)
            await commit()
            self._config = config
            self.status.succeeded()
            logger.info("reloaded", extra={"changes": "; ".join(changes) or "none"})

    def request(self) -> None:
        """Reload soon; a refusal is logged and counted, and goes nowhere else."""
        task = asyncio.get_running_loop().create_task(self._quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def watch(self) -> None:
        """Reload whenever the file changes, while ``reload.watch`` is on.

        The file is looked at, not listened to: a mounted ConfigMap changes by a
        symlink swap, and network file systems tell nobody. A missing file is
        one that is being replaced.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            mark = self._config.modified()
            is_changed = mark is not None and mark != self._known
            if is_changed and self._config.reload.watch:
                await self._quietly()

    async def close(self) -> None:
        """Cancel what was requested and has not begun to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _quietly(self) -> None:
        try:
            await self.reload()
        except ConfigError:
            return
        except Exception:
            self.status.failed()
            logger.exception("reload_failed")


def _refuse_fixed(old: Config, new: Config) -> None:
    fixed = [key for key in _FIXED if getattr(old, key) != getattr(new, key)]
    if changed := [*changed_listeners(old, new), *fixed]:
        raise ConfigError(
            f"{', '.join(changed)}: cannot change while running; restart to take "
            "this over, or change it back"
        )


async def reconcile(fleet: Fleet, backends: Sequence[BackendConfig]) -> None:
    """Bring *fleet* to what the file says; unchanged backends stay warm.

    New ones come before old ones go, so that there always is somebody.
    """
    wanted = {one.name: one for one in backends}
    for name, one in wanted.items():
        if name not in fleet.backends:
            fleet.add(one)
        elif fleet.backends[name].config != one:
            await fleet.replace(one)
    for name in [name for name in fleet.backends if name not in wanted]:
        await fleet.remove(name)
