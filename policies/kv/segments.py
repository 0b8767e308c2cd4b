"""Token-granular prefix keys: a radix tree of sequences over the pages of a pool.

This is RadixAttention (Zheng et al. 2024, "SGLang: Efficient Execution of Structured
Language Model Programs", section 3): prefixes are matched token by token, so two
prompts share all that they have in common and not only whole blocks of it. There a
page is one token; here it has ``block_size``, and where prompts part inside a page each
branch has a page of its own that repeats the leading slots. So a match may end inside
a page, which its user copies before writing (`BlockTable.adopt` and `reserve`).

Invariants, which `check_integrity` verifies:

- A segment has the pages of every block that one of its tokens is in, whole up to its
  end: along a path, the deepest segment in a block has the page that holds all of it.
- A segment owns one reference to each of its pages.
- Locks count those on the segment itself and on all behind it.
- An unlocked leaf is in the queue, at its last use or earlier.
"""

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from warmroute.policies.kv.pool import NULL_PAGE, BlockPool, PageMisuse
from warmroute.policies.kv.segment import Segment


class SegmentMatch(NamedTuple):
    """The longest known prefix of a sequence."""

    pages: list[int]
    """Pages that hold it, in order."""
    num_tokens: int
    """Its length, any number."""
    partial: int
    """Leading slots that count in the last page; 0 when all of them do."""
    segment: Segment
    """Where it ends, for `SegmentTree.lock`."""


class SegmentTree:
    """Find and keep the pages of prefixes of any length.

    One tree is one cache: prompts for other models, adapters or salts go into trees
    of their own, which may use the same pool. When the pool runs short, the least
    recently used leaves go.

    Args:
        pool: Whose pages to keep; gets `evict` as a reclaimer.
    """

    __slots__ = (
        "_clock",
        "_order",
        "_pool",
        "_queue",
        "num_segments",
        "num_tokens",
        "root",
    )

    def __init__(self, pool: BlockPool) -> None:
        self.root = Segment(None, 0, array("I"), [])
        self.num_segments = 0
        self.num_tokens = 0
        self._pool = pool
        self._clock = count(1)
        self._order = count()
        self._queue: list[tuple[int, int, Segment]] = []
        pool.add_reclaimer(self.evict)

    def __repr__(self) -> str:
        return (
            f"<SegmentTree [Tokens: {self.num_tokens}, segments: {self.num_segments}]>"
        )

    def match(self, tokens: "array[int]") -> SegmentMatch:
        """Find the longest known prefix of *tokens*, and count it as used.

        Adopt or share the pages before anything else is inserted or allocated.
        Splits a segment in which the match ends, so that a lock holds no more than
        that. O(tokens).

        Args:
            tokens: As ``array("I")``; leave out the last one of a prompt, which has
                to be computed in any case.
        """
        segment = self._descend(tokens)
        size = self._pool.block_size
        pages: list[int] = []
        for part in reversed(list(segment.upwards())):
            pages[part.start // size :] = part.pages
        return SegmentMatch(pages, segment.end, segment.end % size, segment)

    def insert(self, tokens: "array[int]", pages: Sequence[int]) -> int:
        """Keep a computed sequence; shares the pages that are new here. O(tokens).

        Args:
            tokens: As ``array("I")``, from the first token on.
            pages: All pages that hold them, as in the block table.

        Returns:
            The leading tokens that were known before.

        Raises:
            PageMisuse: The pages do not fit the tokens, or one of those needed is
                blank or evicted; nothing is added.
        """
        size = self._pool.block_size
        if len(pages) != -(-len(tokens) // size):
            raise PageMisuse(
                f"segment tree: {len(pages)} pages for {len(tokens)} tokens (allowed: "
                f"as many pages of {size} as they need)"
            )
        parent = self._descend(tokens)
        known = parent.end
        if known < len(tokens):
            self._append(parent, tokens[known:], list(pages[known // size :]))
        return known

    def lock(self, segment: Segment) -> None:
        """Keep a matched prefix from eviction until `unlock`. O(segments of it).

        Raises:
            PageMisuse: It was evicted since the match.
        """
        if segment.parent is None and segment is not self.root:
            raise PageMisuse(
                f"segment tree: {segment!r} is locked but evicted; match again"
            )
        for part in segment.upwards():
            part.locks += 1

    def unlock(self, segment: Segment) -> None:
        """Undo one `lock`.

        Raises:
            PageMisuse: It is not locked.
        """
        if segment is not self.root and not segment.locks:
            raise PageMisuse(f"segment tree: {segment!r} is unlocked but not locked")
        for part in segment.upwards():
            part.locks -= 1
        self._enqueue(segment)

    def evict(self, num_pages: int) -> int:
        """Drop least recently used leaves until so many pages became free.

        Pages that others use do not become free by it. O(log n) a segment.

        Returns:
            The pages that became free: fewer when only locked prefixes are left.
        """
        before = self._pool.num_free
        while self._pool.num_free - before < num_pages:
            leaf = self._oldest()
            if leaf is None:
                break
            self._remove(leaf)
        return self._pool.num_free - before

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(everything)."""
        segments = list(self.root.walk())[1:]
        queued = {id(entry[2]): entry[0] for entry in self._queue}
        assert len(queued) == len(self._queue), "a segment is queued twice"
        assert not self.root.tokens, "the root has tokens"
        assert not self.root.locks, "the root is locked"
        for segment in segments:
            self._check(segment)
            stamp = queued.get(id(segment), segment.last_used + 1)
            assert segment.is_queued == (id(segment) in queued), "queue mark is wrong"
            if not segment.children and not segment.locks:
                assert stamp <= segment.last_used, f"{segment} cannot be evicted"
        assert self.num_segments == len(segments), "segments miscounted"
        num_tokens = sum(len(segment.tokens) for segment in segments)
        assert self.num_tokens == num_tokens, "tokens miscounted"

    def _check(self, segment: Segment) -> None:
        size = self._pool.block_size
        num_pages = -(-segment.end // size) - segment.start // size
        assert segment.tokens, f"{segment} is empty"
        assert len(segment.pages) == num_pages, f"{segment} has other pages"
        assert segment.parent is not None, f"{segment} is adrift"
        assert segment.parent.children[segment.tokens[0]] is segment, f"lost {segment}"
        assert segment.start == segment.parent.end, f"{segment} not behind its parent"
        behind = sum(child.locks for child in segment.children.values())
        assert segment.locks >= behind, f"{segment} is locked behind only"
        assert all(map(self._pool.refs, segment.pages)), f"{segment} has blank pages"
        used = [child.last_used for child in segment.children.values()]
        assert segment.last_used >= max(used, default=0), f"{segment} used earlier"

    def _descend(self, tokens: "array[int]") -> Segment:
        """Return where the longest known prefix ends; split there, mark as used."""
        segment, stamp = self.root, next(self._clock)
        segment.last_used = stamp
        while segment.end < len(tokens):
            child = segment.children.get(tokens[segment.end])
            if child is None:
                break
            num_common = child.num_common(tokens)
            is_inside = num_common < len(child.tokens)
            segment = self._split(child, num_common) if is_inside else child
            segment.last_used = stamp
            if is_inside:
                break
        return segment

    def _split(self, lower: Segment, num_tokens: int) -> Segment:
        """Cut off the first tokens of *lower*, which stays the object it is."""
        upper = Segment(lower.parent, lower.start, lower.tokens[:num_tokens], [])
        size, first = self._pool.block_size, lower.start // self._pool.block_size
        cut, end = upper.end // size - first, -(-upper.end // size) - first
        # Where the cut is inside a page, both need it.
        self._pool.share(lower.pages[cut:end], is_hit=False)
        upper.pages, lower.pages = lower.pages[:end], lower.pages[cut:]
        upper.locks, upper.last_used = lower.locks, lower.last_used
        lower.tokens, lower.start = lower.tokens[num_tokens:], upper.end
        self._attach(upper)
        lower.parent = upper
        upper.children[lower.tokens[0]] = lower
        self.num_segments += 1
        return upper

    def _append(self, parent: Segment, tokens: "array[int]", pages: list[int]) -> None:
        if NULL_PAGE in pages:
            raise PageMisuse(
                f"segment tree: tokens from {parent.end} on have evicted pages {pages} "
                f"(allowed: sequences that are there whole)"
            )
        self._pool.share(pages, is_hit=False)
        leaf = Segment(parent, parent.end, tokens, pages)
        leaf.last_used = parent.last_used
        self._replace_partial(parent, pages[0])
        self._attach(leaf)
        self.num_segments += 1
        self.num_tokens += len(tokens)
        self._enqueue(leaf)

    def _replace_partial(self, parent: Segment, page: int) -> None:
        """Let the segments in front read the same page in the block they end in.

        Theirs has no slot that this one has not, so a chat that goes on does not
        leave the last page of each turn behind.
        """
        size = self._pool.block_size
        block_start = parent.end // size * size
        for part in parent.upwards():
            if part.end <= block_start:
                break
            self._pool.share([page], is_hit=False)
            self._pool.release([part.pages[-1]])
            part.pages[-1] = page

    def _attach(self, segment: Segment) -> None:
        assert segment.parent is not None, "the root has no parent to be attached to"
        segment.parent.children[segment.tokens[0]] = segment

    def _remove(self, leaf: Segment) -> None:
        parent = leaf.parent
        assert parent is not None, "the root is no victim"
        del parent.children[leaf.tokens[0]]
        leaf.parent = None
        self.num_segments -= 1
        self.num_tokens -= len(leaf.tokens)
        self._pool.release(leaf.pages)
        self._enqueue(parent)

    def _enqueue(self, segment: Segment) -> None:
        if self._is_victim(segment) and not segment.is_queued:
            segment.is_queued = True
            heappush(self._queue, (segment.last_used, next(self._order), segment))

    def _is_victim(self, segment: Segment) -> bool:
        is_leaf = segment.parent is not None and not segment.children
        return is_leaf and not segment.locks

    def _oldest(self) -> Segment | None:
        """Take the least recently used unlocked leaf out of the queue."""
        while self._queue:
            stamp, _, segment = heappop(self._queue)
            segment.is_queued = False
            if stamp == segment.last_used and self._is_victim(segment):
                return segment
            self._enqueue(segment)
        return None
