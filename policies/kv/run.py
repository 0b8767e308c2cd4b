"""A run of consecutive blocks: the node of the prefix index."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

_KEY_BYTES: Final = 8


class Run:
    """Consecutive blocks of one chain that no other chain leaves in between.

    A holder has the first *n* blocks of a run, so dropping blocks from the tail,
    which is how engines evict, changes one number. Most holders have whole runs;
    they are bits of one integer, and only the others have an entry each.

    Attributes:
        hashes: Block hashes, ``array("Q")``; empty in the root alone.
        start: Blocks in front of the run.
        tokens: Tokens a block.
        parent: The run before; None in the root and once out of the index.
        children: Runs behind, by first hash; None when there are none.
        full: Bit set of the holders that have the whole run.
        partial: Leading blocks of each other holder; None when there are none.
        used: Stamp of the last use, for each holder that has any block.
        last: Latest stamp of all, of holders that have left too.
        hits: How often a prompt with these blocks was sent.
        keys: The engine's own keys of the blocks that a holder has, for each holder
            that announces its blocks; None when none does.
        mark: What stands for the run where many keys lead to it; see `Known`.
    """

    __slots__ = (
        "children",
        "full",
        "hashes",
        "hits",
        "keys",
        "last",
        "mark",
        "parent",
        "partial",
        "start",
        "tokens",
        "used",
    )

    def __init__(
        self, parent: "Run | None", start: int, hashes: "array[int]", tokens: int
    ) -> None:
        self.parent = parent
        self.start = start
        self.hashes = hashes
        self.tokens = tokens
        self.children: dict[int, Run] | None = None
        self.full = 0
        self.partial: dict[int, int] | None = None
        self.used: dict[int, float] = {}
        self.last = 0.0
        self.hits = 0
        self.keys: dict[int, array[int]] | None = None
        self.mark = object()

    def __repr__(self) -> str:
        held = {holder: self.held(holder) for holder in sorted(self.used)}
        return f"<Run [Blocks: {self.start}..{self.end}, held: {held}]>"

    def __lt__(self, other: "Run") -> bool:
        """Order runs of equal age and depth, for heaps: any fixed order will do."""
        return self.hashes < other.hashes

    def __hash__(self) -> int:
        """Hash by identity; compiled, a class with an order has no other hash."""
        return id(self) >> 4

    @property
    def end(self) -> int:
        """Number of blocks up to and with the last one of this run."""
        return self.start + len(self.hashes)

    def held(self, holder: int) -> int:
        """Count the leading blocks that *holder* has."""
        if self.full >> holder & 1:
            return len(self.hashes)
        return self.partial.get(holder, 0) if self.partial else 0

    def hold(self, holder: int, num_blocks: int) -> None:
        """Set the number of leading blocks that *holder* has; stamps stay."""
        if self.partial and self.partial.pop(holder, None) and not self.partial:
            self.partial = None
        if num_blocks == len(self.hashes):
            self.full |= 1 << holder
            return
        self.full &= ~(1 << holder)
        if not num_blocks:
            self.used.pop(holder, None)
        elif self.partial is None:
            self.partial = {holder: num_blocks}
        else:
            self.partial[holder] = num_blocks

    def reach(self) -> int:
        """Return the most leading blocks that any holder has."""
        if self.full:
            return len(self.hashes)
        return max(self.partial.values()) if self.partial else 0

    def common(self, hashes: Sequence[int], position: int, at: int = 0) -> int:
        """Count the blocks from *at* on that equal *hashes* from *position* on.

        O(log n): equal hashes have equal blocks in front of them.
        """
        own = self.hashes
        low, high = 0, min(len(own) - at, len(hashes) - position)
        while low < high:
            middle = (low + high + 1) // 2
            if own[at + middle - 1] == hashes[position + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    def split(self, at: int) -> "Run":
        """Put the first *at* blocks into a new run in front of this one.

        Holders that reach no further than the new run leave this one. The new run
        takes this one's place below its parent, and its stamps. Returns it.
        """
        assert self.parent is not None
        assert self.parent.children is not None
        assert 0 < at < len(self.hashes)
        head = Run(self.parent, self.start, self.hashes[:at], self.tokens)
        head.full, head.used, head.last = self.full, self.used.copy(), self.last
        head.hits = self.hits
        self._split_keys(head, at)
        partial, self.partial = self.partial, None
        self.parent.children[head.hashes[0]] = head
        self.parent = head
        self.hashes = self.hashes[at:]
        self.start += at
        head.children = {self.hashes[0]: self}
        for holder, num_blocks in (partial or {}).items():
            head.hold(holder, min(num_blocks, at))
            self.hold(holder, max(num_blocks - at, 0))
        return head

    def _split_keys(self, head: "Run", at: int) -> None:
        if self.keys is None:
            return
        head.keys = {holder: keys[:at] for holder, keys in self.keys.items()}
        rest = {
            holder: keys[at:] for holder, keys in self.keys.items() if len(keys) > at
        }
        self.keys = rest or None

    def position(self, holder: int, key: int) -> int:
        """Return where the block is that *holder* announced as *key*.

        O(1) for the last and the first one, for engines evict from either end; else
        O(n).
        """
        assert self.keys is not None
        keys = self.keys[holder]
        if keys[-1] == key:
            return len(keys) - 1
        if keys[0] == key:
            return 0
        # To look for bytes takes a sixth of what it does to make numbers of them.
        content, name = keys.tobytes(), key.to_bytes(_KEY_BYTES, sys.byteorder)
        at = content.index(name)
        while at % _KEY_BYTES:
            at = content.index(name, at + 1)
        return at // _KEY_BYTES

    def cut(self, num_blocks: int) -> "array[int]":
        """Take off the blocks behind the first *num_blocks*, which nobody has.

        Returns the hashes taken off.
        """
        gone = self.hashes[num_blocks:]
        del self.hashes[num_blocks:]
        for holder, held in list((self.partial or {}).items()):
            if held == num_blocks:
                self.hold(holder, held)
        return gone

    def walk(self) -> "Iterator[Run]":
        """Go through this run and all behind it, each before its children."""
        todo = [self]
        while todo:
            run = todo.pop()
            if run.children:
                todo.extend(run.children.values())
            yield run
