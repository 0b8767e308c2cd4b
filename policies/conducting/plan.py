"""What to keep, give up, fetch and copy: decisions from learned returns.

An item is looked at whenever its time away passes the end of a bucket. Two numbers
decide. Its index is what a second of keeping it returns at best (`Gaps.index`). The
price of a second is what the pool's least valuable blocks return: the hazard, weighted
by tokens, of what has been away about as long as an unused block lives (`Pressure`).
Keeping pays above the price. Giving up pays below it, and below the mean of all, for
the price is learned from few. Where nothing is ever written over, neither does. A fleet
that sees no prompt again has a price and indices of zero, and nothing is done.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from warmroute.policies.conducting.gaps import BOUNDS, Gaps, Kinds, bucket, start_of
from warmroute.policies.conducting.item import Item, Shared, Talk, Turn, Wish
from warmroute.policies.conducting.pressure import Pressure

MAX_ITEMS = 8192
MARGIN = 1.25
"""By how much an index must differ from the price before anything is done."""

_AT_RISK = 0.4  # share of a block's life after which it is better retained
_GONE = 2.0  # lives after which it is surely gone
_SLACK_S = 1.5
_GIVE_UP = 1.5  # times that the price must exceed the index
_DUE_CHANCE = 0.05
_HOT = 1.0  # requests under way on one prefix
_READY = 1024

Came = Callable[[Item, Turn], None]


class Plan:
    """Learn from requests that ended, and wish for what is worth doing.

    No I/O, no clock but the times it is given; memory is bounded by 8192 items and 256
    kinds of conversations.

    Args:
        min_tokens: Smallest item that anything is done for.
        retained_share: Share of a pool that may be retained; `Pressure.held` is to be
            kept up to date with what is.
        came: Called when an item on which something was done is used again, or its
            conversation went on elsewhere.

    Attributes:
        has_lower_tiers: What is gone from a pool may lie below it.
    """

    __slots__ = (
        *("_came", "_heap", "_items", "_kinds", "_numbers", "_paid", "_pools"),
        *("_ready", "_returns", "has_lower_tiers", "min_tokens", "retained_share"),
    )

    def __init__(
        self,
        min_tokens: int,
        retained_share: float,
        came: Came = lambda item, turn: None,
    ) -> None:
        self.min_tokens = min_tokens
        self.retained_share = retained_share
        self.has_lower_tiers = True
        self._came = came
        self._items: OrderedDict[object, Item] = OrderedDict()
        self._heap: list[tuple[float, int, Item, int]] = []
        self._numbers = count()
        self._returns = Gaps()
        self._kinds = Kinds(self._returns)
        self._paid = Gaps()
        self._pools: dict[str, Pressure] = {}
        self._ready: list[Wish] = []

    def __repr__(self) -> str:
        return f"<Plan [{len(self._items)} items, {len(self._kinds)} kinds]>"

    def __len__(self) -> int:
        return len(self._items)

    def pool(self, backend: str) -> Pressure:
        """Return the pressure on a backend's pool."""
        pool = self._pools.get(backend)
        if pool is None:
            pool = self._pools[backend] = Pressure()
        return pool

    def forget(self, backend: str) -> None:
        """Forget what a backend had: it is gone, or has started anew."""
        self._pools.pop(backend, None)
        gone = [key for key, one in self._items.items() if one.backend == backend]
        for key in gone:
            self._items.pop(key).stamp += 1

    def observe(self, turn: Turn) -> None:
        """Take in a request that was answered. O(log items)."""
        self.pool(turn.backend).wrote(turn.fresh_tokens, turn.now)
        talk = self._find(turn)
        if talk is not None:
            self._go_on(talk, turn)
        else:
            self._begin(turn)

    def is_due(self, now: float) -> bool:
        """Tell whether there is anything to look at."""
        return bool(self._ready or (self._heap and self._heap[0][0] <= now))

    def due(self, now: float, most: int = 1_000_000) -> list[Wish]:
        """Return what should be done now. O(log items) for each that is looked at.

        Args:
            now: Time.
            most: Items to look at; those left over are due still.
        """
        wishes, self._ready = self._ready, []
        while self._heap and self._heap[0][0] <= now and most > 0:
            _, _, item, stamp = heappop(self._heap)
            if item.stamp == stamp:
                wishes += self._pass(item, now)
                most -= 1
        return wishes

    def keep(self, item: Item, until: float) -> None:
        """Note that an item is retained until some time."""
        if not item.held_until:
            self.pool(item.backend).found(True)
        item.held_until = until

    def let_go(self, item: Item) -> None:
        """Note that an item is not retained for what it will be used for next.

        Its engine may have blocks of it still, until their time is over.
        """
        item.held_until = 0.0

    def missed(self, item: Item) -> None:
        """Note that what was to be retained is gone already."""
        self.pool(item.backend).found(False)

    def held(self, now: float) -> list[Item]:
        """Return what is retained."""
        return [one for one in self._items.values() if one.held_until > now]

    def shared(self, backend: str, tail: int) -> Shared | None:
        """Return the prefix that ends in *tail*, if conversations begin with it."""
        found = self._items.get((backend, tail))
        return found if isinstance(found, Shared) else None

    # learning

    def _find(self, turn: Turn) -> Talk | None:
        """Return the conversation that a request goes on with."""
        for tail in (turn.tail, *turn.ends):
            found = self._items.get(tail)
            if isinstance(found, Talk):
                return found
        return None

    def _go_on(self, talk: Talk, turn: Turn) -> None:
        gaps, away = self._kinds.of(talk.kind), max(turn.now - talk.last, 0.0)
        at = bucket(away)
        self._wait(talk, gaps, away - start_of(talk.at))
        for learned in (gaps, self._returns):
            learned.came(at)
        self._paid.came(at, talk.own_tokens)
        self._came(talk, turn)
        self.let_go(talk)
        if talk.backend != turn.backend:
            self._leave_behind(talk)
        self._items.pop(talk.tail, None)
        self._enter(turn.tail, self._renewed(talk, turn))

    def _leave_behind(self, talk: Talk) -> None:
        """Give up the copy on the backend that a conversation has left."""
        if talk.own_tokens >= self.min_tokens and len(self._ready) < _READY:
            reason = "its conversation goes on elsewhere"
            self._ready.append(Wish("demote", talk, reason))

    def _renewed(self, talk: Talk, turn: Turn) -> Talk:
        talk.stamp += 1
        renewed = Talk(turn, talk.kind)
        renewed.own_blocks = talk.own_blocks + turn.blocks - talk.blocks
        return renewed

    def _begin(self, turn: Turn) -> None:
        kind = turn.before or 0
        if turn.before is not None and turn.seen_blocks:
            self._share(turn, turn.before)
        self._enter(turn.tail, Talk(turn, kind))

    def _share(self, turn: Turn, before: int) -> None:
        key = (turn.backend, before)
        shared = self._items.get(key)
        if not isinstance(shared, Shared):
            shared = Shared(turn, before)
        shared.count(turn)
        if shared.notes:
            self._came(shared, turn)
        self.let_go(shared)
        shared.used(turn.now)
        self._enter(key, shared)
        if shared.concurrency >= _HOT and shared.tokens >= self.min_tokens:
            reason = (
                f"{shared.concurrency:.1f} requests with it are under way at a time"
            )
            if len(self._ready) < _READY:
                self._ready.append(Wish("replicate", shared, reason))

    def _enter(self, key: object, item: Item) -> None:
        self._items[key] = item
        self._items.move_to_end(key)
        if len(self._items) > MAX_ITEMS:
            _, oldest = self._items.popitem(last=False)
            oldest.stamp += 1
            self.let_go(oldest)
        self._schedule(item)

    def _wait(self, talk: Talk, gaps: Gaps, seconds: float) -> None:
        if seconds > 0.0:
            gaps.waited(talk.at, seconds)
            self._returns.waited(talk.at, seconds)
            self._paid.waited(talk.at, seconds, talk.own_tokens)

    # deciding

    def _schedule(self, item: Item) -> None:
        heap = self._heap
        due = item.last + BOUNDS[item.at]
        heappush(heap, (due, next(self._numbers), item, item.stamp))
        if len(heap) > 4 * len(self._items) + 64:
            self._heap = [one for one in heap if one[2].stamp == one[3]]
            heapify(self._heap)

    def _pass(self, item: Item, now: float) -> list[Wish]:
        """Let an item enter its next bucket, and see what that makes of it."""
        if isinstance(item, Talk):
            gaps = self._kinds.of(item.kind)
            self._wait(item, gaps, BOUNDS[item.at] - start_of(item.at))
        if item.at + 1 == len(BOUNDS):
            self._drop(item)
            return []
        away = BOUNDS[item.at]
        item.at += 1
        self._schedule(item)
        if item.held_until and item.held_until < now:
            self.let_go(item)
        return self._judge(item, away, BOUNDS[item.at], now)

    def _drop(self, item: Item) -> None:
        self.let_go(item)
        key = (item.backend, item.tail) if isinstance(item, Shared) else item.tail
        if self._items.get(key) is item:
            del self._items[key]

    def _judge(self, item: Item, away: float, until: float, now: float) -> list[Wish]:
        if item.is_demoted or item.own_tokens < self.min_tokens:
            return []
        pool = self.pool(item.backend)
        life = pool.lifetime_s(now)
        is_gone = away > _GONE * life and not item.held_until
        if is_gone and not self.has_lower_tiers:
            return []
        index, chance = self._outlook(item, away, until)
        ttl = until - away + _SLACK_S
        price = self._paid.mean_hazard(life / 2, 2 * life)
        mean = self._paid.mean_hazard(0.0, 2 * life)
        if index > MARGIN * price:
            if until > _AT_RISK * life and not is_gone and self._has_room(item, pool):
                return [Wish("retain", item, _because("kept", index, price), ttl)]
            if chance >= _DUE_CHANCE:
                return [Wish("restore", item, _because("due", index, chance), ttl)]
            return []
        is_loose = not is_gone and not item.held_until
        if index * _GIVE_UP < min(price, mean) and is_loose:
            return [Wish("demote", item, _because("given up", index, price))]
        return []

    def _outlook(self, item: Item, away: float, until: float) -> tuple[float, float]:
        """Return the index of an item, and its chance to be used in this bucket."""
        if isinstance(item, Shared):
            return item.rate, min(item.rate * (until - away), 1.0)
        gaps = self._kinds.of(item.kind if isinstance(item, Talk) else 0)
        return gaps.index(away), gaps.chance(away, until - away)

    def _has_room(self, item: Item, pool: Pressure) -> bool:
        """Tell whether there may be room; who knows the blocks counts them."""
        most = self.retained_share * (pool.capacity or 0)
        return max(pool.held, item.own_tokens) <= most


def _because(what: str, index: float, other: float) -> str:
    if what == "due":
        return f"due: comes back at {index:.3f}/s, {other:.0%} likely before long"
    return f"{what}: a second returns {index:.4f} uses, and {other:.4f} at the margin"
