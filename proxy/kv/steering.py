"""The whole of KV control in one process: composed here, driven by the app."""

import logging

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.conductor.conductor import Conductor
from warmroute.proxy.config.sections import ConductorConfig
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.kv.controls import Controls
from warmroute.proxy.kv.desk import Desk
from warmroute.proxy.kv.prefixes import Sessions
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.router import Router
from warmroute.proxy.view import View
from warmroute.proxy.view.lookup import Lookup

logger = logging.getLogger(__name__)


class Steering:
    """Know what the engines' caches can be told, and take orders for them.

    Args:
        fleet: The backends.
        view: What they are believed to hold.
        index: The blocks of the view.
        router: Tells how requests ended.
        config: Of the conductor.
    """

    __slots__ = ("conductor", "controls", "desk", "sessions")

    def __init__(
        self,
        fleet: Fleet,
        view: View,
        index: PrefixIndex,
        router: Router,
        config: ConductorConfig,
    ) -> None:
        self.controls = Controls(fleet)
        self.sessions = Sessions()
        self.desk = Desk(fleet, self.controls, view, index, self.sessions)
        self.conductor = Conductor(fleet, self.controls, view, index, config)
        router.on_settled = self._settled

    def __repr__(self) -> str:
        return f"<Steering {self.controls!r}>"

    def start(self) -> None:
        """Let the conductor act, if it is to; needs a running loop."""
        self.conductor.start()

    async def configure(self, config: ConductorConfig) -> None:
        """Take over other settings of the conductor."""
        if config != self.conductor.config:
            await self.conductor.configure(config)

    def restarted(self, backend: Backend) -> None:
        """Note that an engine has started anew."""
        self.conductor.forget(backend.name)
        self.controls.changed(backend)

    def changed(self, backend: Backend) -> None:
        """Note that a backend's state changed, or what is known of it."""
        self.controls.changed(backend)

    def removed(self, backend: Backend) -> None:
        """Note that a backend is about to be forgotten."""
        self.controls.removed(backend)
        self.conductor.forget(backend.name)

    async def close(self) -> None:
        """Stop whatever is under way."""
        await self.conductor.close()
        await self.controls.close()

    def _settled(
        self,
        decision: Decision,
        lookup: Lookup,
        prompt: Prompt,
        session: str | None,
        seen_tokens: int,
        now: float,
    ) -> None:
        if self.conductor.config.enabled:
            self.conductor.settled(decision, lookup, prompt, seen_tokens, now)
        if session is not None:
            self._note(session, lookup)

    def _note(self, session: str, lookup: Lookup) -> None:
        ends = {
            size: chains[0].hashes[-1]
            for size, chains in lookup.chains.items()
            if chains and chains[0].hashes
        }
        self.sessions.note(session, ends)
