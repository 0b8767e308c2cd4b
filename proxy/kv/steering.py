"""The whole of KV control in one process: composed here, driven by the app."""

import logging

from warmroute.policies.kv.radix import PrefixIndex
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
    """

    __slots__ = ("controls", "desk", "num_failures", "sessions")

    def __init__(
        self, fleet: Fleet, view: View, index: PrefixIndex, router: Router
    ) -> None:
        self.controls = Controls(fleet)
        self.sessions = Sessions()
        self.desk = Desk(fleet, self.controls, view, index, self.sessions)
        self.num_failures = 0
        router.on_settled = self._settled

    def __repr__(self) -> str:
        return f"<Steering {self.controls!r}>"

    def changed(self, backend: Backend) -> None:
        """Note that a backend's state changed, or what is known of it."""
        self.controls.changed(backend)

    def removed(self, backend: Backend) -> None:
        """Note that a backend is about to be forgotten."""
        self.controls.removed(backend)

    async def close(self) -> None:
        """Stop whatever is under way."""
        await self.controls.close()

    def _settled(
        self,
        decision: Decision,
        lookup: Lookup,
        prompt: Prompt,
        session: str | None,
        now: float,
    ) -> None:
        if session is None:
            return
        for chains in lookup.chains.values():
            if chains:
                self.sessions.note(session, chains[0].hashes)
            break
