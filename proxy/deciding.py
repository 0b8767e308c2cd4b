"""What decides, as configured: the policy, its shadow, and the queue beside them."""

from collections.abc import Callable
from typing import Any

from warmroute.policies.routing.base import build
from warmroute.proxy.config.policy import PolicyConfig
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.port import DataPort
from warmroute.proxy.queue import HoldQueue
from warmroute.proxy.router import Router
from warmroute.proxy.shadow import Shadow


class Deciding:
    """Put a ``policy`` section in force, at start and on reload.

    What a change does not touch keeps its state: the policy, what the shadow has
    counted, and the requests that are held.

    Args:
        router: Made with the policy of *config*.
        port: Gets the queue.
        ledger: Counts what a shadow raises.
        config: In force at first.

    Raises:
        PolicyError: The shadow cannot be built.
    """

    __slots__ = ("_config", "_ledger", "_port", "_router")

    def __init__(
        self, router: Router, port: DataPort, ledger: Ledger, config: PolicyConfig
    ) -> None:
        self._router = router
        self._port = port
        self._ledger = ledger
        self._config = PolicyConfig()
        self._take(config, self._build_shadow(config))

    def __repr__(self) -> str:
        return f"<Deciding {self._router.policy.name} {self.queue!r} {self.shadow!r}>"

    @property
    def queue(self) -> HoldQueue | None:
        """The queue, where there is one."""
        return self._port.queue

    @property
    def shadow(self) -> Shadow | None:
        """The second policy, where there is one."""
        return self._router.shadow

    def prepare(self, config: PolicyConfig) -> Callable[[], None]:
        """Build what can fail of *config*; returns what puts it in force.

        Raises:
            PolicyError: The policy or its shadow cannot be built.
        """
        policy, shadow = build(config.name, config.options), self._build_shadow(config)

        def commit() -> None:
            if not config.builds_as(self._config):
                self._router.policy = policy
            self._take(config, shadow)

        return commit

    def show_queue(self) -> dict[str, Any] | None:
        """Return ``queue`` of ``/api/state``."""
        return None if self.queue is None else self.queue.facts()

    def show_shadow(self) -> dict[str, Any] | None:
        """Return ``shadow`` of ``/api/state``."""
        return None if self.shadow is None else self.shadow.facts()

    def _build_shadow(self, config: PolicyConfig) -> Shadow | None:
        if config.shadow is None:
            return None
        policy = build(config.shadow.name, config.shadow.options)
        return Shadow(policy, self._ledger)

    def _take(self, config: PolicyConfig, shadow: Shadow | None) -> None:
        if config.shadow != self._config.shadow:
            self._router.shadow = shadow
        queue = self.queue
        if config.queue is None:
            if queue is not None:
                queue.release_all()
                self._port.queue = None
        elif queue is None:
            self._port.queue = HoldQueue(config.queue, self._router, self._port.clock)
        else:
            queue.configure(config.queue)
        self._config = config
