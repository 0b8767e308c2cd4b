"""The tree of runs under the prefix index: its steps, its books, and its bound."""

from array import array
from collections.abc import Sequence
from typing import Final

from warmroute.policies.kv.holders import Holders
from warmroute.policies.kv.recency import Recency
from warmroute.policies.kv.run import Run

# Bytes as CPython 3.11 allocates them, rounded up; a test holds the sum against
# tracemalloc. A run is the object, its array, its dict of stamps, and its entries in
# the parent and in a heap; a member is a stamp and an entry in its holder's heap.
RUN_BYTES: Final = 900
MEMBER_BYTES: Final = 240
BLOCK_BYTES: Final = 9
KEY_BYTES: Final = 110
EXTRA_BYTES: Final = 160

_MIN_CUT_BLOCKS: Final = 64


class Tree:
    """Runs by prefix, with counts for every holder and a cap on memory.

    Each step keeps the books right, so that the operations of `PrefixIndex` need not
    know them.

    Attributes:
        version: Changes whenever a `path` found before may no longer be one.
        num_bytes: Memory in use, by constants that bound what Python allocates.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.holders = Holders()
        self.root = Run(None, 0, array("Q"), 0)
        self.leaves = Recency(_leaf_stamp, most=lambda: self.num_runs)
        self.version = 0
        self.num_runs = 0
        self.num_blocks = 0
        self.num_bytes = 0

    @property
    def max_bytes(self) -> int:
        """The cap on `num_bytes`; a lower one makes room at once."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        if self.num_bytes > max_bytes:
            self._shrink()

    def path(self, hashes: Sequence[int]) -> tuple[list[Run], int]:
        """Return the runs that a chain passes, and how many of its blocks are here.

        The last run may be matched in part. One comparison a run, and O(log n) in
        the last.
        """
        path: list[Run] = []
        depth, total = 0, len(hashes)
        children = self.root.children
        while children and depth < total:
            run = children.get(hashes[depth])
            if run is None:
                break
            path.append(run)
            own = run.hashes
            end = depth + len(own)
            if end > total or own[-1] != hashes[end - 1]:
                depth += run.common(hashes, depth)
                break
            depth, children = end, run.children
        return path, depth

    def split(self, run: Run, at: int) -> Run:
        """Split *run* behind its first *at* blocks; return the new run in front."""
        num_before = len(run.used)
        head = run.split(at)
        self.version += 1
        self.num_runs += 1
        num_more = len(head.used) + len(run.used) - num_before
        self.num_bytes += RUN_BYTES + num_more * MEMBER_BYTES
        if len(head.hashes) > len(run.hashes):  # the fewer keys are led elsewhere
            head.mark, run.mark = run.mark, head.mark
        for holder, keys in (head.keys or {}).items():
            rest = (run.keys or {}).get(holder)
            self.holders.all[holder].known.part(head, keys, run, rest)
        for holder in head.used:
            recency = self.holders.all[holder].recency
            if recency is not None:
                recency.push(head)
                if holder in run.used:
                    recency.push(run)  # it is deeper now, so it goes first
        return head

    def append(
        self,
        parent: Run,
        holder: int,
        hashes: Sequence[int],
        tokens: int,
        stamp: float,
        hits: int,
    ) -> Run:
        """Add blocks behind all of *parent*, held by *holder* alone.

        A leaf that nobody else has grows in place, so a chat stays one run. *hits* is
        what a new run begins with: 1 when a prompt is what brings it, else 0.
        """
        owner = self.holders.all[holder]
        num_new = len(hashes)
        self.num_bytes += num_new * BLOCK_BYTES
        if (
            parent.full == 1 << holder
            and parent.partial is None
            and not parent.children
            and parent.tokens == tokens
        ):
            run = parent
            run.hashes.extend(hashes)
            run.used[holder] = run.last = stamp
        else:
            run = Run(parent, parent.end, array("Q", hashes), tokens)
            run.full, run.used[holder], run.last = 1 << holder, stamp, stamp
            run.hits = hits
            self._hang(run, parent)
            if owner.recency is not None:
                owner.recency.push(run, stamp)
        self.version += 1
        self.num_blocks += num_new
        owner.blocks += num_new
        owner.tokens += num_new * tokens
        return run

    def _hang(self, run: Run, parent: Run) -> None:
        """Put a new leaf, which one holder has, behind *parent*."""
        if parent.children is None:
            parent.children = {}
        parent.children[run.hashes[0]] = run
        self.num_runs += 1
        self.num_bytes += RUN_BYTES + MEMBER_BYTES
        self.leaves.push(run, run.last)

    def hold(self, run: Run, holder: int, num_blocks: int, stamp: float) -> int:
        """Let *holder* have at least *num_blocks* of *run*, used now.

        Returns how many it had before.
        """
        held = run.held(holder)
        run.used[holder] = run.last = stamp
        if held < num_blocks:
            owner = self.holders.all[holder]
            run.hold(holder, num_blocks)
            owner.blocks += num_blocks - held
            owner.tokens += (num_blocks - held) * run.tokens
            if not held:
                self.num_bytes += MEMBER_BYTES
                if owner.recency is not None:
                    owner.recency.push(run)
        return held

    def drop(self, run: Run, holder: int, keep: int) -> None:
        """Take from *holder* what it has of *run* behind the first *keep* blocks."""
        held = run.held(holder)
        if held <= keep:
            return
        owner = self.holders.all[holder]
        if run.keys is not None:
            self._forget_keys(run, holder, keep)
        owner.blocks -= held - keep
        owner.tokens -= (held - keep) * run.tokens
        run.hold(holder, keep)
        if not keep:
            self.num_bytes -= MEMBER_BYTES
        self._trim(run)

    def drop_behind(
        self, run: Run, at: int, holder: int, before: float | None = None
    ) -> None:
        """Take all blocks behind the first *at* of *run* from *holder*.

        Args:
            run: Where to start.
            at: Blocks of that run that stay.
            holder: Whose blocks go.
            before: Take only runs last used before this stamp.
        """
        members = list(run.walk()) if run.children else [run]
        for member in reversed(members):
            stamp = member.used.get(holder)
            if stamp is not None and (before is None or stamp < before):
                self.drop(member, holder, at if member is run else 0)

    def recency(self, holder: int) -> Recency:
        """Return the order of last use of what *holder* has. O(runs of all)."""
        has_any = self.holders.all[holder].blocks > 0
        runs = self.root.walk() if has_any else ()
        return Recency(lambda run: run.used.get(holder), runs)

    def evict(self, holder: int, num_tokens: int) -> int:
        """Drop the least recently used blocks of *holder*, deepest first.

        Whole blocks, at least *num_tokens* where it has as many. Returns the tokens
        dropped.
        """
        recency = self.holders.all[holder].recency or self.recency(holder)
        num_left = num_tokens
        while num_left > 0 and (run := recency.oldest()):
            held = run.held(holder)
            num_gone = min(held, -(-num_left // run.tokens))
            num_left -= num_gone * run.tokens
            self.drop(run, holder, held - num_gone)
        return num_tokens - num_left

    def name(self, run: Run, holder: int, keys: "array[int]") -> None:
        """Let the blocks that *holder* has gained in *run* be found by its *keys*.

        The array becomes the run's own.
        """
        if run.keys is None:
            run.keys = {}
        known = run.keys.get(holder)
        if known is None:
            run.keys[holder] = keys
        else:
            known.extend(keys)
        self.holders.all[holder].known.put(keys, run)
        self.num_bytes += len(keys) * KEY_BYTES

    def enforce(self, holder: int) -> None:
        """Bring *holder* below its capacity, and all together below the cap."""
        owner = self.holders.all[holder]
        if owner.capacity is not None and owner.tokens > owner.capacity:
            self.evict(holder, owner.tokens - owner.capacity)
        if self.num_bytes > self._max_bytes:
            self._shrink()

    def _shrink(self) -> None:
        touched: set[int] = set()
        while (excess := self.num_bytes - self._max_bytes) > 0:
            run = self.leaves.oldest()
            if run is None:
                break
            block_bytes = BLOCK_BYTES + KEY_BYTES * len(run.keys or ())
            num_blocks = len(run.hashes)
            # Many at once, but half of a short run: it may be what has just come.
            least = min(_MIN_CUT_BLOCKS, (num_blocks + 1) // 2)
            keep = max(0, num_blocks - max(least, -(-excess // block_bytes)))
            for each in list(run.used):
                self.drop(run, each, keep)
                touched.add(each)
        for each in touched:
            self.holders.all[each].known.compact()

    def _forget_keys(self, run: Run, holder: int, keep: int) -> None:
        assert run.keys is not None
        keys = run.keys.get(holder)
        if keys is None:
            return
        owner = self.holders.all[holder]
        gone = keys[keep:]
        owner.known.forget(gone, run)
        if owner.extra:
            for key in gone:
                if owner.extra.pop(key, None) is not None:
                    self.num_bytes -= EXTRA_BYTES
        self.num_bytes -= len(gone) * KEY_BYTES
        del keys[keep:]
        if not keys:
            owner.known.close(run)
            del run.keys[holder]
            run.keys = run.keys or None

    def _trim(self, run: Run) -> None:
        """Take out the tail that nobody has, and structure that leads nowhere."""
        is_new_leaf = False  # the first one was a leaf before, and has its place
        while run.parent is not None and not run.children:
            reach, parent, first = run.reach(), run.parent, run.hashes[0]
            if reach < len(run.hashes):
                num_gone = len(run.cut(reach))
                self.version += 1
                self.num_blocks -= num_gone
                self.num_bytes -= num_gone * BLOCK_BYTES
            if reach:
                if is_new_leaf:
                    self.leaves.push(run)
                return
            assert parent.children is not None
            del parent.children[first]
            parent.children = parent.children or None
            run.parent = None
            self.num_runs -= 1
            self.num_bytes -= RUN_BYTES
            run, is_new_leaf = parent, True


def _leaf_stamp(run: Run) -> float | None:
    return None if run.parent is None or run.children else run.last
