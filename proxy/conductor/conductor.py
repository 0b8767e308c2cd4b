"""The conductor: from requests that ended to actions at the engines.

It looks on: requests tell it how they ended, and whatever goes wrong in here is counted
and harms none of them. It acts through KV control and has no other power, within a
budget of actions a minute and a share of each pool. All that it retains ends by itself
within minutes, and at once when it is stopped.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from warmroute.policies.conducting.item import Item, Kind, Shared, Turn, Wish
from warmroute.policies.conducting.plan import Plan
from warmroute.policies.errors import WarmrouteError
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.conductor.action import Action, Actions, renewed, waiting
from warmroute.proxy.conductor.allowance import Allowance
from warmroute.proxy.conductor.deeds import Deeds
from warmroute.proxy.conductor.observing import turn_of
from warmroute.proxy.conductor.retaining import Retainer
from warmroute.proxy.conductor.tokens import PrefixTokens
from warmroute.proxy.config.sections import ConductorConfig
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.kv.controls import Controls
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.view import View
from warmroute.proxy.view.lookup import Lookup

logger = logging.getLogger(__name__)

TICK_S = 0.25
_SLICE = 16


class Conductor:
    """Decide on actions a few times a second, do them, and keep record.

    Args:
        fleet: The backends.
        controls: Their levers.
        view: What they hold.
        index: The blocks of the view.
        config: Whether it acts, and within which bounds.
        clock: Monotonic seconds.
        wall: Unix time.

    Attributes:
        is_stopped: The kill switch was pulled.
        num_failures: Faults of its own and refusals of engines.
        num_actions: Actions done, by kind.
        num_copied_tokens: Prompt tokens computed for nobody but a copy.
    """

    def __init__(
        self,
        fleet: Fleet,
        controls: Controls,
        view: View,
        index: PrefixIndex,
        config: ConductorConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._tokens = PrefixTokens()
        self._deeds = Deeds(fleet, controls, view, index, self._tokens)
        self.actions = Actions(wall)
        self._retainer = Retainer(self._deeds, clock)
        self.plan = Plan(config.min_tokens, config.retained_share, self._came)
        self._allowance = Allowance(config.actions_per_minute, clock)
        self.config = config
        self.is_stopped = False
        self.num_failures = 0
        self.num_actions: dict[str, int] = {}
        self.num_copied_tokens = 0
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False

    def __repr__(self) -> str:
        return f"<Conductor {self.plan!r} stopped={self.is_stopped}>"

    # looking on

    def settled(
        self,
        decision: Decision,
        lookup: Lookup,
        prompt: Prompt,
        seen_tokens: int,
        now: float,
    ) -> None:
        """Learn from a request that was answered; O(log items), raises nothing."""
        try:
            turn = turn_of(decision, lookup, seen_tokens, now)
            if turn is not None:
                self.plan.observe(turn)
                backend = self._fleet.backends.get(turn.backend)
                if turn.before is not None and backend is not None:
                    shared = self.plan.shared(turn.backend, turn.before)
                    self._tokens.learn(turn, prompt, shared, backend.models)
        except Exception:
            self._failed("conductor_observation_failed")

    def forget(self, backend: str) -> None:
        """Forget a backend that is gone, or has started anew."""
        self.plan.forget(backend)
        self._retainer.holdings.forget(backend)

    def _came(self, item: Item, turn: Turn) -> None:
        for action in waiting(item):
            action.judge(item, turn)
        item.notes.clear()

    # acting

    def start(self) -> None:
        """Begin to act; needs a running loop. What was stopped goes on."""
        self.is_stopped = False
        if self._task is None and self.config.enabled:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Act no more, from now on, and let go of all that is retained."""
        self.is_stopped = True
        await self.close()

    async def configure(self, config: ConductorConfig) -> None:
        """Take over other settings; what was learned stays."""
        self.config = config
        self.plan.min_tokens = config.min_tokens
        self.plan.retained_share = config.retained_share
        self._allowance.configure(config.actions_per_minute)
        if not config.enabled:
            await self.close()
        elif not self.is_stopped:
            self.start()

    async def close(self) -> None:
        """Act no more and let go of all that is retained."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.actions.cut_off()
        for item in self.plan.held(self._clock()):
            self.plan.let_go(item)
        await self._retainer.let_go()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.tick()
            except Exception:
                self._failed("conductor_failed")

    async def tick(self) -> None:
        """Do what is due now, as far as the budget goes; engines in parallel."""
        now = self._clock()
        self.actions.expire(now)
        holdings = self._retainer.holdings
        holdings.expire(now)
        for backend in self._fleet.backends.values():
            pool, size = self.plan.pool(backend.name), backend.block_size or 0
            pool.capacity = backend.capacity_tokens
            pool.held = holdings.count(backend.name) * size
        self.plan.has_lower_tiers = self._deeds.has_lower_tiers
        wishes: dict[str, list[Wish]] = {}
        while self.plan.is_due(now):
            for wish in self.plan.due(now, _SLICE):
                wishes.setdefault(wish.backend, []).append(wish)
            await asyncio.sleep(0)
        await asyncio.gather(*(self._do_all(each) for each in wishes.values()))

    async def _do_all(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            try:
                await self._do(wish)
            except WarmrouteError:
                self.num_failures += 1
            except Exception:
                self._failed("conductor_action_failed")

    async def _do(self, wish: Wish) -> None:
        item = wish.item
        if wish.kind == "replicate" and isinstance(item, Shared):
            await self._replicate(wish, item)
        elif wish.kind == "demote":
            await self._demote(wish)
        elif item.stamp == wish.stamp:
            await self._keep(wish)

    async def _keep(self, wish: Wish) -> None:
        """Retain what is on the GPU; bring back what lies below it."""
        item = wish.item
        lower = self._deeds.lower(item)
        if lower and self._may(wish.backend, "restore"):
            action = self._begin("restore", wish)
            with self.actions.attempt(action):
                num_blocks = await self._deeds.restore(wish.backend, lower)
            self._done(action, item, wish, num_blocks)
        if wish.kind != "retain":
            return
        keys = self._deeds.resident(item)
        if len(keys) < item.blocks:
            self.plan.missed(item)
            return
        if not self._has_room(item, keys) or not self._may(wish.backend, "retain"):
            return
        now = self._clock()
        action = renewed(item, now) or self._begin("retain", wish)
        with self.actions.attempt(action):
            num_kept = await self._retainer.retain(wish.backend, keys, wish.ttl_s)
        if num_kept < len(keys):
            kept = f"{num_kept} of {len(keys)} blocks kept"
            self.actions.end(action, "refused", f"refused in part: {kept}")
        elif item.stamp == wish.stamp:
            self.plan.keep(item, now + wish.ttl_s)
        self._done(action, item, wish, len(keys))

    def _has_room(self, item: Item, keys: list[int]) -> bool:
        """Tell whether a whole chain fits the share, each block counted once."""
        capacity = self.plan.pool(item.backend).capacity or 0
        num_blocks = self._retainer.holdings.count_with(item.backend, keys)
        return num_blocks * item.block_tokens <= capacity * self.plan.retained_share

    async def _demote(self, wish: Wish) -> None:
        item = wish.item
        keys = self._deeds.resident(item)[item.blocks - item.own_blocks :]
        if not keys or not self._may(wish.backend, "demote"):
            return
        action = self._begin("demote", wish)
        item.is_demoted = True
        with self.actions.attempt(action):
            num_blocks = await self._deeds.demote(wish.backend, keys)
        self._done(action, item, wish, num_blocks)

    async def _replicate(self, wish: Wish, shared: Shared) -> None:
        name = self._deeds.target(shared, self._clock())
        if name is None or not self._allowance.take():
            return
        action = self.actions.begin("replicate", shared, name, wish.reason)
        with self.actions.attempt(action):
            num_tokens = await self._deeds.replicate(shared, name, self._clock())
        self.num_copied_tokens += num_tokens
        self.actions.end(action, "copied", f"copied: {num_tokens} tokens")
        self.num_actions["replicate"] = self.num_actions.get("replicate", 0) + 1

    def _may(self, name: str, verb: str) -> bool:
        return self._deeds.can(name, verb) and self._allowance.take()

    def _begin(self, kind: Kind, wish: Wish) -> Action:
        action = self.actions.begin(kind, wish.item, wish.backend, wish.reason)
        wish.item.notes = [*reversed(waiting(wish.item)), action]
        return action

    def _done(self, action: Action, item: Item, wish: Wish, num_blocks: int) -> None:
        self.num_actions[action.kind] = self.num_actions.get(action.kind, 0) + 1
        if not num_blocks:
            words = "nothing: the engine has none of the blocks any more"
            self.actions.end(action, "nothing", words)
        self.actions.expect(action, self._clock() + action.patience_s(wish.ttl_s))

    def _failed(self, event: str) -> None:
        self.num_failures += 1
        if not self._has_failed:
            self._has_failed = True
            logger.exception(event)

    @property
    def retained_blocks(self) -> dict[str, int]:
        """Blocks that engines keep for it, by backend."""
        return self._retainer.holdings.counts()

    def describe(self) -> dict[str, object]:
        """Return the JSON of ``/api/conductor``, the newest actions first."""
        return {
            "enabled": self.config.enabled,
            "stopped": self.is_stopped,
            "failures": self.num_failures,
            "copied_tokens": self.num_copied_tokens,
            "retained_blocks": self.retained_blocks,
            "done": dict(self.num_actions),
            **self.actions.as_object(),
        }
