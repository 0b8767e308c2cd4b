"""A pool under random work, and a publisher that loses and mixes up what it tells.

The pool is the real one of the embedded engine; what it caches and drops is the truth.
The publisher numbers its batches and replays them as vLLM does, over real sockets,
with an adversary in between that drops, repeats, delays and reorders them.
"""

import asyncio
from array import array
from random import Random

import msgspec
import zmq
import zmq.asyncio
from integration.publisher import Publisher

from warmroute.adapters.kv_control import ResidentBlock, Snapshot
from warmroute.policies.kv.blocks import hash_tokens, root_hash
from warmroute.policies.kv.pool import BlockPool

SIZE, ROOT = 4, root_hash("m")
PAGES = 48
_FAMILIES, _DEPTH = 6, 7
_SECRET = 0x9E3779B97F4A7C15

Event = dict[str, object]


class World:
    """One engine's cache: does random work, and keeps what is to be told of it.

    Args:
        random: Decides everything.
        repeats: Whether blocks are announced more than once, as vLLM does.
    """

    def __init__(self, random: Random, repeats: bool) -> None:
        self._random = random
        self._repeats = repeats
        self.pool = BlockPool(PAGES, SIZE, observer=self)
        self.events: list[Event] = []
        self._tokens: dict[int, list[int]] = {}
        self._parents: dict[int, int | None] = {}
        self._extra: list[int] = []

    @property
    def truth(self) -> set[int]:
        """Hashes of the blocks that are cached."""
        return {one.block_hash for one in self.pool.snapshot()} | set(self._extra)

    def snapshot(self, seq: int | None) -> Snapshot:
        """List the blocks as KV control does."""
        blocks = [
            ResidentBlock(
                hash=_name(one.block_hash),
                parent=_named(one.parent_hash),
                tier="gpu",
                refs=one.refs,
                token_ids=self._tokens[one.block_hash],
            )
            for one in self.pool.snapshot()
        ]
        return Snapshot(seq=seq, block_size=SIZE, blocks=blocks)

    def work(self) -> None:
        """Do one thing: mostly serve a prompt."""
        chance = self._random.random()
        if chance < 0.75:
            self._serve()
        elif chance < 0.9:
            cached = sorted(self.truth)
            count = min(len(cached), self._random.randint(1, 6))
            self.pool.evict(self._random.sample(cached, count))
        elif chance < 0.92:
            self.pool.flush()
        elif self._repeats:
            self._repeat()

    def stored(self, block_hash: int, parent_hash: int | None, page: int) -> None:
        last = self.events[-1] if self.events else {}
        hashes, tokens = last.get("block_hashes"), last.get("token_ids")
        if (
            isinstance(hashes, list)
            and isinstance(tokens, list)
            and hashes[-1] == _named(parent_hash)
        ):
            hashes.append(_name(block_hash))
            tokens += self._tokens[block_hash]
            return
        self.events.append(self._stored(block_hash, parent_hash))

    def removed(self, block_hash: int, page: int) -> None:
        event = {"type": "BlockRemoved", "block_hashes": [_name(block_hash)]}
        self.events.append({**event, "medium": "GPU"})

    def cleared(self) -> None:
        self._extra.clear()
        self.events.append({"type": "AllBlocksCleared"})

    def _stored(self, block_hash: int, parent_hash: int | None) -> Event:
        return {
            "type": "BlockStored",
            "block_hashes": [_name(block_hash)],
            "parent_block_hash": _named(parent_hash),
            "token_ids": list(self._tokens[block_hash]),
            "block_size": SIZE,
            "medium": "GPU",
        }

    def _serve(self) -> None:
        """Serve a prompt: take what is cached of it, compute and keep the rest."""
        depth = self._random.randint(1, _DEPTH)
        tokens = [self._random.randrange(_FAMILIES)] * SIZE
        for _ in range(depth - 1):
            tokens += [100 + self._random.randrange(2)] * SIZE
        hashes = hash_tokens(array("I", tokens), SIZE, ROOT)
        parents = [None, *hashes]
        for at, one in enumerate(hashes):
            self._tokens[one] = tokens[at * SIZE : (at + 1) * SIZE]
            self._parents[one] = parents[at]
        pages = self.pool.lookup(hashes)
        self.pool.share(pages)
        for at in range(len(pages), len(hashes)):
            pages += self.pool.allocate(1)
            self.pool.register(pages[-1], hashes[at], parents[at], at)
        self.pool.release(pages)

    def _repeat(self) -> None:
        """Announce a block once more, or that its second copy is gone."""
        if self._extra and self._random.random() < 0.5:
            gone = self._extra.pop(self._random.randrange(len(self._extra)))
            self.removed(gone, 0)
            return
        held = [one.block_hash for one in self.pool.snapshot()]
        firm = [one for one in held if self._parents[one] in (None, *held)]
        if firm:
            again = self._random.choice(firm)
            self._extra.append(again)
            self.events.append(self._stored(again, self._parents[again]))


class Chaos(Publisher):
    """A publisher with an adversary on its line; see `publish_all`."""

    def __init__(
        self, context: zmq.asyncio.Context, random: Random, number: int, *where: str
    ) -> None:
        endpoint, replay = where or ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
        super().__init__(context, endpoint, replay=replay)
        self._random = random
        self._number = number
        self._late: list[tuple[int, int]] = []
        self.made_at = 0.0
        self.is_calm = False

    async def tell(self, events: list[Event]) -> None:
        """Send a batch; what becomes of it is the adversary's."""
        seq = len(self._sent)
        # No two batches are alike, for engines put the time into each.
        self.made_at = self._number + seq / 1e6
        self._sent.append(msgspec.msgpack.encode([self.made_at, events, 0]))
        fate = 1.0 if self.is_calm else self._random.random()
        if fate < 0.08:
            return
        if fate < 0.2:
            self._late.append((seq + self._random.randint(1, 5), seq))
            return
        await self.repeat(seq)
        if fate < 0.26:
            await self.repeat(self._random.randrange(max(0, seq - 8), seq + 1))
        await self._send_late(seq)

    def cut(self) -> None:
        """Change how much is kept for replays."""
        self._buffer = self._random.choice([0, 2, 8, 10_000, 10_000])

    async def calm(self) -> None:
        """Let everything that is late go, and harm nothing from now on."""
        self.is_calm = True
        await self._send_late(1 << 60)

    async def _send_late(self, now: int) -> None:
        due = [seq for at, seq in self._late if at <= now]
        self._late = [one for one in self._late if one[0] > now]
        for seq in due:
            await self.repeat(seq)


async def reborn(before: Chaos, random: Random, number: int) -> Chaos:
    """Start another publisher at the addresses that the first one leaves."""
    address = before.address
    assert address.replay is not None
    await before.close()
    while True:
        try:
            return Chaos(
                before.context, random, number, address.endpoint, address.replay
            )
        except zmq.ZMQError:
            await asyncio.sleep(0.005)


def _name(block_hash: int) -> int:
    """Return the engine's own name for a block; the same after a restart."""
    return block_hash ^ _SECRET


def _named(block_hash: int | None) -> int | None:
    return None if block_hash is None else _name(block_hash)
