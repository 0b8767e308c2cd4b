"""What the cached blocks contain: told to those who follow the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Medium = Literal["GPU", "CPU"]
"""Tier of a block: the engine's pages are ``GPU``, as with vLLM on a CPU."""


@dataclass(frozen=True, slots=True)
class BlockContent:
    """Describe a full block whose hash is known.

    Args:
        block_hash: Chained hash of the block.
        parent_hash: Hash of the block in front of it, None for the first one.
        token_ids: Its tokens.
        cache_salt: Salt of the request that computed it.
        depth: Blocks in front of it.
    """

    block_hash: int
    parent_hash: int | None
    token_ids: tuple[int, ...]
    cache_salt: str | None
    depth: int = 0


class KVObserver:
    """Follow the prefix cache; every method is a no-op to override.

    All methods are called on the compute thread and must not block. One hash is
    resident at most once in a tier.
    """

    def stored(self, content: BlockContent, medium: Medium) -> None:
        """A block is resident in a tier from now on."""

    def removed(self, block_hash: int, medium: Medium) -> None:
        """A block left a tier."""

    def cleared(self) -> None:
        """Every block left every tier."""

    def batch_ended(self) -> None:
        """A step is planned or over, or a call: what was told since is one batch."""


class BlockContents:
    """Keep what every resident block holds, and tell of changes.

    It stands between pool and observer: the pool knows pages and hashes only.
    `known` is told what a block holds before the pool registers it.

    Args:
        observer: Told of each change.
    """

    __slots__ = ("_contents", "_tiers", "observer")

    def __init__(self, observer: KVObserver | None = None) -> None:
        self.observer = observer or KVObserver()
        self._contents: dict[int, BlockContent] = {}
        self._tiers: dict[Medium, set[int]] = {"GPU": set(), "CPU": set()}

    def __repr__(self) -> str:
        gpu, cpu = self._tiers["GPU"], self._tiers["CPU"]
        return f"<BlockContents: {len(gpu)} on pages, {len(cpu)} on the host>"

    def get(self, block_hash: int) -> BlockContent | None:
        """Return what a resident block holds, None if it is not resident."""
        return self._contents.get(block_hash)

    def listed(self, medium: Medium) -> list[BlockContent]:
        """List what is resident in a tier, parents in front of children."""
        found = [self._contents[block_hash] for block_hash in self._tiers[medium]]
        return sorted(found, key=lambda content: content.depth)

    def known(self, content: BlockContent) -> None:
        """Take what a block holds; call it right before the block is stored."""
        self._contents.setdefault(content.block_hash, content)

    def stored(self, block_hash: int, parent_hash: int | None, page: int) -> None:
        """Take note that the pool registered a block (`PoolObserver`)."""
        self.enter(block_hash, "GPU")

    def removed(self, block_hash: int, page: int) -> None:
        """Take note that the pool dropped a block (`PoolObserver`)."""
        self.leave(block_hash, "GPU")

    def cleared(self) -> None:
        """Take note that the pool dropped every block (`PoolObserver`).

        Followers drop every tier then, so what is on the host is told anew.
        """
        host = self._tiers["CPU"]
        self._tiers["GPU"].clear()
        self._contents = {key: self._contents[key] for key in host}
        self.observer.cleared()
        for content in self._contents.values():
            self.observer.stored(content, "CPU")

    def enter(self, block_hash: int, medium: Medium) -> None:
        """Take note that a block is resident in a tier."""
        self._tiers[medium].add(block_hash)
        self.observer.stored(self._contents[block_hash], medium)

    def leave(self, block_hash: int, medium: Medium) -> None:
        """Take note that a block left a tier; forget it when it left the last."""
        self._tiers[medium].discard(block_hash)
        if not any(block_hash in held for held in self._tiers.values()):
            self._contents.pop(block_hash, None)
        self.observer.removed(block_hash, medium)
