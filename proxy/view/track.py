"""One publisher's events, applied to the index under our own block hashes.

Engines name blocks by hashes of their own, which depend on their version and settings.
Here they are keys without a meaning: the tokens of an event are hashed anew, behind the
hash of the parent block, with the same function and the same roots that requests use.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from warmroute.adapters.kv_events.wire import (
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
    block_key,
    block_keys,
    tier_of,
)
from warmroute.policies.kv.blocks import hash_tokens, separate
from warmroute.policies.kv.radix import PrefixIndex

_FULL_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention")
_MAX_ORPHANS: Final = 65_536
_MAX_ORPHAN_TOKENS: Final = 1 << 19
_MAX_REMOVED: Final = 65_536

Root = Callable[[str | None, str | None], int]


class Track:
    """What one rank of an engine announces, entered into the index.

    Blocks whose parent is not known are orphans. They are held until it comes and
    never rooted, for nobody knows what prompt they continue.

    Attributes:
        block_size: Tokens a block, as the events tell; None before the first.
        num_orphans: Blocks that wait for a parent.
        num_skipped: Events that could not be used.
        num_events: Events by kind.
    """

    __slots__ = (
        "_clear",
        "_group",
        "_holders",
        "_index",
        "_late",
        "_on_removed",
        "_on_size",
        "_orphan_keys",
        "_removed_at",
        "_root",
        "_waiting",
        "_wiped_at",
        "block_size",
        "num_events",
        "num_orphans",
        "num_skipped",
    )

    def __init__(
        self,
        index: PrefixIndex,
        holders: Mapping[str, int],
        root: Root,
        on_size: Callable[[int], None],
        on_removed: Callable[[], None],
        clear: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Make an empty one.

        Args:
            index: Where the blocks go.
            holders: Number of each tier of the backend.
            root: Returns the root hash for a LoRA name and a cache salt.
            on_size: Called with the tokens a block, once they are known.
            on_removed: Called when blocks were announced to be gone.
            clear: Drops all that the tiers have, and returns their numbers from then
                on; left out, they are emptied one by one.
        """
        self._index = index
        self._holders = holders
        self._root = root
        self._on_size = on_size
        self._on_removed = on_removed
        self._clear = clear or self._empty
        self._group: int | None = None
        self._waiting: dict[int, list[tuple[int, Stored]]] = {}
        self._orphan_keys: Counter[int] = Counter()
        self._late: Counter[int] = Counter()
        self._removed_at: dict[int, float] = {}
        self._wiped_at = 0.0
        self.block_size: int | None = None
        self.num_orphans = 0
        self.num_skipped = 0
        self.num_events: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Track [Size: {self.block_size}, orphans: {self.num_orphans}]>"

    def apply(self, batch: Batch, stamp: float) -> None:
        """Enter a batch. O(its tokens); raises nothing, whatever it holds."""
        self.num_skipped += batch.num_skipped
        for event in batch.events:
            self._apply(event, stamp)
        if any(not isinstance(event, Stored) for event in batch.events):
            self._on_removed()

    def was_removed(self, block_hash: int, since: float) -> bool:
        """Tell whether a block was announced to be gone after the stamp *since*."""
        return max(self._removed_at.get(block_hash, 0.0), self._wiped_at) >= since

    def wipe(self, stamp: float) -> None:
        """Forget every block: the engine has, or may have."""
        self._wiped_at = stamp
        self._removed_at.clear()
        self._holders = self._clear()
        self._waiting.clear()
        self._orphan_keys.clear()
        self._late.clear()
        self.num_orphans = 0
        # Who comes back may have other ones.
        self.block_size = self._group = None

    def _empty(self) -> Mapping[str, int]:
        for holder in self._holders.values():
            self._index.remove_holder(holder)
        return self._holders

    def _apply(self, event: Event, stamp: float) -> None:
        if isinstance(event, Stored):
            self.num_events["stored"] += 1
            self._stored(event, stamp)
        elif isinstance(event, Removed):
            self.num_events["removed"] += 1
            if event.group_idx in (None, self._group) or self._group is None:
                self._removed(event, stamp)
        elif isinstance(event, Cleared):
            self.num_events["cleared"] += 1
            self.wipe(stamp)

    def _stored(self, event: Stored, stamp: float) -> None:
        if event.kv_cache_spec_kind not in _FULL_ATTENTION or not self._counts(event):
            self.num_skipped += 1
            return
        holder = self._holders[tier_of(event.medium)]
        keys = self._enter(holder, event, stamp)
        if keys and self._waiting:
            self._adopt(keys, stamp)

    def _counts(self, event: Stored) -> bool:
        """Tell whether an event is of the group and block size that count.

        The first group of full attention does. All such groups hold the same
        tokens; an engine may split layers into several. An event that names no group
        is of all of them: older engines know none, nor do some offloading tiers.
        """
        if self.block_size is None:
            self.block_size = event.block_size
            self._on_size(event.block_size)
        if self._group is None:
            self._group = event.group_idx
        is_ours = event.group_idx in (None, self._group)
        return is_ours and event.block_size == self.block_size

    def _enter(self, holder: int, event: Stored, stamp: float) -> Sequence[int] | None:
        """Enter the blocks; returns their keys, None if they are orphans or bad."""
        keys = block_keys(event.block_hashes)
        parent = event.parent_block_hash
        if parent is None:
            parent_key, seed = None, self._seed(event)
        else:
            parent_key = block_key(parent)
            found = self._index.find(holder, parent_key)
            if found is None:
                self._hold(parent_key, keys, holder, event)
                return None
            seed = found
        try:
            hashes = self._hash(event, seed)
        except (OverflowError, TypeError):
            self.num_skipped += 1
            return None
        size = event.block_size
        self._index.store(holder, parent_key, keys, hashes, size, stamp)
        return keys

    def _seed(self, event: Stored) -> int:
        extras = _words(event, 0)
        salt = extras[0] if len(extras) == 1 else event.cache_salt
        seed = self._root(event.lora_name, salt)
        if event.lora_id is not None and not event.lora_name:
            # A LoRA, and nobody knows which: no prompt is known to match.
            return separate(seed, ("lora_id", str(event.lora_id)))
        return seed

    def _hash(self, event: Stored, seed: int) -> list[int]:
        tokens = array("I")
        tokens.fromlist(event.token_ids)  # takes two thirds of what array() does
        size = event.block_size
        if not event.extra_keys or not any(event.extra_keys):
            return hash_tokens(tokens, size, seed)
        hashes: list[int] = []
        for at in range(len(event.block_hashes)):
            extras = _words(event, at)
            is_salt = event.parent_block_hash is None and at == 0 and len(extras) == 1
            if extras and not is_salt:
                seed = separate(seed, extras)
            hashes += hash_tokens(tokens[at * size : (at + 1) * size], size, seed)
            seed = hashes[-1]
        return hashes

    def _removed(self, event: Removed, stamp: float) -> None:
        holder = self._holders[tier_of(event.medium)]
        for one in event.block_hashes:
            key = block_key(one)
            found = self._index.find(holder, key)
            if found is not None:
                self._index.remove_block(holder, key)
                self._note_removed(found, stamp)
            elif key in self._orphan_keys:
                self._late[key] += 1

    def _note_removed(self, block_hash: int, stamp: float) -> None:
        removed_at = self._removed_at
        removed_at.pop(block_hash, None)
        removed_at[block_hash] = stamp
        if len(removed_at) > _MAX_REMOVED:
            del removed_at[next(iter(removed_at))]

    def _hold(
        self, parent_key: int, keys: Sequence[int], holder: int, event: Stored
    ) -> None:
        num_orphans = self.num_orphans + len(keys)
        if (
            num_orphans > _MAX_ORPHANS
            or num_orphans * event.block_size > _MAX_ORPHAN_TOKENS
        ):
            self.num_skipped += 1
            return
        self._waiting.setdefault(parent_key, []).append((holder, event))
        self._orphan_keys.update(keys)
        self.num_orphans += len(keys)

    def _adopt(self, keys: Iterable[int], stamp: float) -> None:
        """Enter the orphans behind *keys*, those behind them, and so on."""
        todo = list(keys)
        while todo:
            for holder, event in self._waiting.pop(todo.pop(), ()):
                own = block_keys(event.block_hashes)
                self.num_orphans -= len(own)
                self._orphan_keys -= Counter(own)
                if self._enter(holder, event, stamp):
                    todo += own
                    self._remove_late(holder, own)

    def _remove_late(self, holder: int, keys: Iterable[int]) -> None:
        for key in keys:
            if self._late.get(key):
                self._late[key] -= 1
                self._index.remove_block(holder, key)


def _words(event: Stored, at: int) -> tuple[str, ...]:
    """Return what separates block *at* from others of its tokens, but for its LoRA."""
    if event.extra_keys is None or at >= len(event.extra_keys):
        return ()
    extras = event.extra_keys[at]
    if extras is None:
        return ()
    parts = extras if isinstance(extras, list | tuple) else (extras,)
    words = [one if isinstance(one, str) else repr(one) for one in parts]
    if event.lora_name in words:
        words.remove(event.lora_name)  # once: a salt may be called the same
    return tuple(words)
