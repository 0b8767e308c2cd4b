"""Blocks in the order of a key that may change at any time."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

import msgspec

from warmroute.policies.kv.shards import LAST, Shards

_FULL = 512
"""Entries that are heaped up before they are set aside as a piece."""

_MANY = _FULL // 2
"""Entries that count, from which on they are set aside."""

_FEW = _FULL // 4
_FEWS = _FULL // 12
"""A piece is taken apart at one of so many numbers of entries that count, from `_FEW`
on: where all lose as many, not all come to it at once."""

_STEP = 17
_SLACK = 64

Key = tuple[float, int]
"""Score, then what decides between equal scores; the least goes first."""


class _Entry(msgspec.Struct, order=True, gc=False):
    """A block with one key that it has or had; the garbage collector looks past it."""

    score: float
    tie: int
    block: int
    counts: bool = True
    piece: int = -1
    """Number of the piece that it is in; negative while it is in none."""


class _Piece:
    """Entries that were set aside in order; never changed, so none is moved.

    They are in a dict by their place: the garbage collector goes through a new tuple or
    list of them once, and there may be many new ones.
    """

    __slots__ = ("at", "entries", "few", "num_left")

    def __init__(self, entries: list[_Entry], few: int) -> None:
        self.entries = dict(enumerate(entries))
        self.few = few
        self.num_left = len(entries)  # those that count
        self.at = 0  # the first of those

    @property
    def first(self) -> _Entry:
        """The first one that counts; there is at least one."""
        return self.entries[self.at]

    def advance(self) -> None:
        """Pass over those in front that count no more."""
        while not self.entries[self.at].counts:
            self.at += 1


class BlockHeap:
    """A priority queue of blocks, least key first, equal keys by the block.

    New entries are in a heap of at most 512. When that is full, it is sorted and set
    aside as a piece, and the least of all is the first of the heap or of some piece.
    A block that leaves, or gets another key, leaves an entry that counts no more. Where
    few count, the piece is taken apart. The first one that counts of each piece is in
    a list in their order. So no call takes long, whatever went before: it moves or
    passes over some 512 entries at most, and there are never more than four times the
    blocks, and a few. The garbage collector looks past pieces and entries. O(log n)
    amortised.
    """

    __slots__ = ("_by_block", "_fresh", "_heads", "_num_blocks", "_num_made", "_pieces")

    def __init__(self) -> None:
        self._num_blocks = 0
        self._by_block: Shards[int, _Entry] = Shards()
        self._fresh: list[_Entry] = []
        self._pieces: dict[int, _Piece] = {}
        self._heads: list[_Entry] = []  # of all pieces, in order
        self._num_made = 0

    def __repr__(self) -> str:
        return f"<BlockHeap [Blocks: {len(self)}]>"

    def __len__(self) -> int:
        return self._num_blocks

    def __contains__(self, block: int) -> bool:
        return block in self._by_block.tables[hash(block) & LAST]

    @property
    def num_entries(self) -> int:
        """Entries, those that count no more included. O(pieces)."""
        aside = sum(len(piece.entries) for piece in self._pieces.values())
        return len(self._fresh) + aside

    def get(self, block: int) -> Key | None:
        """Return the key of *block*; None when it is not in."""
        entry = self._by_block.tables[hash(block) & LAST].get(block)
        return None if entry is None else (entry.score, entry.tie)

    def put(self, block: int, key: Key) -> None:
        """Add *block*, or give it another key."""
        shard = self._by_block.tables[hash(block) & LAST]
        known = shard.get(block)
        entry = shard[block] = _Entry(key[0], key[1], block)
        if known is None:
            self._num_blocks += 1
        else:
            self._drop(known)
        heappush(self._fresh, entry)
        self._tidy()

    def discard(self, block: int) -> Key | None:
        """Take *block* out, if it is in; return the key that it had."""
        entry = self._by_block.tables[hash(block) & LAST].pop(block, None)
        if entry is None:
            return None
        self._num_blocks -= 1
        self._drop(entry)
        self._tidy()
        return entry.score, entry.tie

    def move(self, block: int, other: "BlockHeap") -> None:
        """Take *block* out, if it is in, and put it into *other*."""
        key = self.discard(block)
        if key is not None:
            other.put(block, key)

    def first(self) -> tuple[int, Key]:
        """Return the block with the least key; there is at least one."""
        entry = self._first()
        return entry.block, (entry.score, entry.tie)

    def pop(self) -> tuple[int, Key]:
        """Take the block with the least key out; there is at least one."""
        entry = self._first()
        del self._by_block.tables[hash(entry.block) & LAST][entry.block]
        self._num_blocks -= 1
        if entry.piece < 0:
            heappop(self._fresh)
        else:
            self._drop(entry)
        return entry.block, (entry.score, entry.tie)

    def ordered(self) -> list[int]:
        """List the blocks, least key first. O(n log n)."""
        entries = [entry for shard in self._by_block for entry in shard.values()]
        return [entry.block for entry in sorted(entries)]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(n)."""
        counted = [entry for entry in self._fresh if entry.counts and entry.piece < 0]
        for number, piece in self._pieces.items():
            left = [entry for entry in piece.entries.values() if entry.counts]
            assert len(left) == piece.num_left > piece.few, "a piece is miscounted"
            assert all(entry.piece == number for entry in left), "in another piece"
            assert piece.first is left[0], "a piece begins elsewhere"
            counted += left
        heads = sorted(piece.first for piece in self._pieces.values())
        assert self._heads == heads, "a piece is found elsewhere"
        blocks = {
            block: entry for shard in self._by_block for block, entry in shard.items()
        }
        assert len(counted) == len(blocks) == self._num_blocks, "blocks are miscounted"
        for entry in counted:
            assert blocks[entry.block] is entry, "a block has another key"

    def _first(self) -> _Entry:
        """Return the least entry that counts; there is at least one."""
        fresh = self._fresh
        while fresh and not fresh[0].counts:
            heappop(fresh)
        heads = self._heads
        if heads and not (fresh and fresh[0] < heads[0]):
            return heads[0]
        return fresh[0]

    def _tidy(self) -> None:
        num_fresh = len(self._fresh)
        if num_fresh >= _FULL or num_fresh > 2 * self._num_blocks + _SLACK:
            self._fresh = sorted(entry for entry in self._fresh if entry.counts)
            if len(self._fresh) >= _MANY:
                self._set_aside(self._fresh)
                self._fresh = []

    def _set_aside(self, entries: list[_Entry]) -> None:
        """Make a piece of sorted entries, all of which count."""
        number = self._num_made
        self._num_made += 1
        for entry in entries:
            entry.piece = number
        self._pieces[number] = _Piece(entries, _FEW + number * _STEP % _FEWS)
        insort(self._heads, entries[0])

    def _drop(self, entry: _Entry) -> None:
        """Let an entry count no more."""
        entry.counts = False
        if entry.piece < 0:
            return
        piece = self._pieces[entry.piece]
        piece.num_left -= 1
        if piece.num_left <= piece.few:
            self._take_apart(piece)
        elif piece.first is entry:
            self._remove_head(entry)
            piece.advance()
            insort(self._heads, piece.first)

    def _take_apart(self, piece: _Piece) -> None:
        """Put what counts of a piece on the heap again."""
        first = piece.first
        self._remove_head(first)
        del self._pieces[first.piece]
        for at in range(piece.at, len(piece.entries)):
            left = piece.entries[at]
            if left.counts:
                left.piece = -1
                heappush(self._fresh, left)
        self._tidy()

    def _remove_head(self, entry: _Entry) -> None:
        # Of no other block, so that no other has the same key and is found instead.
        del self._heads[bisect_left(self._heads, entry)]
