"""Token-granular keys: what is matched, shared, split, locked and evicted."""

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from warmroute.policies.kv.block_table import BlockTable, Copy
from warmroute.policies.kv.pool import BlockPool, PageMisuse, PoolExhausted
from warmroute.policies.kv.segments import SegmentTree


def ids(text: str) -> "array[int]":
    return array("I", map(ord, text))


def keep(tree: SegmentTree, pool: BlockPool, text: str) -> list[int]:
    """Compute *text* on what is cached of it, keep it, and return its pages."""
    table, match = BlockTable(pool.block_size), tree.match(ids(text))
    table.adopt(pool, match.pages, match.num_tokens)
    table.reserve(pool, len(text) - match.num_tokens)
    tree.insert(ids(text), table.pages)
    pages = list(table.pages)
    table.free(pool)
    return pages


def tree_of(num_pages: int = 20, *texts: str) -> tuple[SegmentTree, BlockPool]:
    pool = BlockPool(num_pages, 4)
    tree = SegmentTree(pool)
    for text in texts:
        keep(tree, pool, text)
    return tree, pool


class TestMatching:
    @pytest.mark.parametrize(
        ("text", "num_tokens", "partial"),
        [("abcdefgh", 8, 0), ("abcdefgX", 7, 3), ("aX", 1, 1), ("X", 0, 0), ("", 0, 0)],
    )
    def test_a_prefix_of_any_length_is_found(
        self, text: str, num_tokens: int, partial: int
    ):
        """Matches end at any token, and say how much of the last page counts."""
        tree, _ = tree_of(20, "abcdefghij")
        match = tree.match(ids(text))

        assert (match.num_tokens, match.partial) == (num_tokens, partial)
        assert match.pages == [1, 2, 3][: -(-num_tokens // 4)]
        tree.check_integrity()

    def test_a_branch_inside_a_page_has_a_page_of_its_own(self):
        """The leading slots of that page are there twice, and read from the branch."""
        tree, pool = tree_of()
        assert keep(tree, pool, "abcdefgh") == [1, 2]
        assert keep(tree, pool, "abcdefXY") == [1, 3]

        assert tree.match(ids("abcdefgh")).pages == [1, 2]
        assert tree.match(ids("abcdefXY")).pages == [1, 3]
        assert repr(tree) == "<SegmentTree [Tokens: 10, segments: 3]>"
        assert pool.num_referenced == 3

    def test_the_user_of_a_partial_page_copies_it(self):
        """Writing behind a match inside a page leaves the page to the tree."""
        tree, pool = tree_of(20, "abcdef")
        table, match = BlockTable(4), tree.match(ids("abcdeX"))
        table.adopt(pool, match.pages, match.num_tokens)

        assert table.reserve(pool, 1) == [Copy(src=2, dst=3)]

    def test_a_chat_that_goes_on_leaves_no_page_behind(self):
        """The partial page of a turn is given up for the one that continues it."""
        tree, pool = tree_of(20, "abcdef", "abcdefghi")

        assert pool.num_referenced == 3
        assert tree.match(ids("abcdef")).pages == tree.match(ids("abcdefghi")).pages[:2]
        tree.check_integrity()

    def test_inserting_what_is_known_changes_nothing(self):
        """Known tokens keep their pages; the others' are not taken."""
        tree, pool = tree_of(20, "abcdef")
        table = BlockTable(4)
        table.reserve(pool, 6)

        assert tree.insert(ids("abcdef"), table.pages) == 6
        table.free(pool)
        assert pool.num_referenced == 2

    def test_pages_have_to_fit_the_tokens(self):
        """Too few pages, blank ones and evicted ones are refused, and nothing kept."""
        tree, pool = tree_of()
        page = pool.allocate(1)[0]
        for pages, message in (
            ([page], "1 pages for 6 tokens"),
            ([page, 9], "page 9 is shared but blank"),
            ([0, page], "have evicted pages"),
        ):
            with pytest.raises(PageMisuse, match=message):
                tree.insert(ids("abcdef"), pages)
        assert (tree.num_tokens, pool.refs(page)) == (0, 1)
        tree.check_integrity()


class TestEviction:
    def test_the_least_recently_used_leaf_goes_first(self):
        """What branches share stays until the last branch is gone."""
        tree, pool = tree_of(20, "abcdefgh", "abcdXXXX", "abcdYYYY")
        tree.match(ids("abcdefgh"))

        assert tree.evict(1) == 1
        assert [
            tree.match(ids(text)).num_tokens
            for text in ("abcdXXXX", "abcdYYYY", "abcdefgh")
        ] == [4, 8, 8]
        assert tree.evict(99) == 3
        assert (tree.num_segments, pool.num_referenced) == (0, 0)

    def test_a_pool_that_runs_short_asks_the_tree(self):
        """An allocation gets the pages of old prefixes, and no more than it needs."""
        tree, pool = tree_of(5, "aaaa", "bbbb", "cccc")
        pool.allocate(2)

        assert tree.match(ids("aaaa")).num_tokens == 0
        assert tree.match(ids("bbbb")).num_tokens == 4

    def test_a_locked_prefix_stays(self):
        """A lock keeps exactly the matched tokens, and what is in front of them."""
        tree, pool = tree_of(20, "abcdefgh")
        match = tree.match(ids("abcdeX"))
        tree.lock(match.segment)

        assert tree.evict(99) == 0
        assert tree.num_tokens == 5
        with pytest.raises(PoolExhausted):
            pool.allocate(19)
        tree.unlock(match.segment)
        assert tree.evict(99) == 2

    def test_locks_are_paired(self):
        """An unlock too many, and a lock of what is gone, are refused."""
        tree, _ = tree_of(20, "abcd")
        match = tree.match(ids("abcd"))
        with pytest.raises(PageMisuse, match="is unlocked but not locked"):
            tree.unlock(match.segment)
        tree.evict(99)
        with pytest.raises(PageMisuse, match="is locked but evicted; match again"):
            tree.lock(match.segment)

    def test_pages_in_use_outlive_the_segment(self):
        """A running request keeps its pages though the tree forgets them."""
        tree, pool = tree_of(20, "abcdefgh")
        table, match = BlockTable(4), tree.match(ids("abcdefgh"))
        table.adopt(pool, match.pages, match.num_tokens)

        assert tree.evict(1) == 0
        assert (tree.num_segments, pool.num_referenced) == (0, 2)


BLOCK = 3
PAGES = 14
texts = st.lists(st.integers(0, 1), min_size=1, max_size=12)
picks = st.integers(0, 999)


class Running:
    """A request at work: its table, its tokens, and the prefix it locked."""

    def __init__(self, tokens: list[int]) -> None:
        self.table = BlockTable(BLOCK)
        self.tokens = tokens
        self.locked: tuple[int, ...] = ()


class SegmentMachine(RuleBasedStateMachine):
    """Random requests on a tree, against a list of sequences with their last use."""

    @initialize()
    def start_empty(self) -> None:
        self.pool = BlockPool(PAGES, BLOCK)
        self.tree = SegmentTree(self.pool)
        self.running: list[Running] = []
        self.handles: dict[int, object] = {}
        self.slots: dict[int, list[int]] = {}
        # Each sequence that a segment ends, with the time of its last use.
        self.known: dict[tuple[int, ...], int] = {}
        self.now = 0

    # The model.

    def longest(self, tokens: list[int]) -> int:
        best = 0
        for known in self.known:
            pairs = zip(known, tokens, strict=False)
            common = next(
                (at for at, (one, other) in enumerate(pairs) if one != other),
                min(len(known), len(tokens)),
            )
            best = max(best, common)
        return best

    def use(self, tokens: list[int]) -> None:
        self.now += 1
        for end in range(1, len(tokens) + 1):
            if tuple(tokens[:end]) in self.known:
                self.known[tuple(tokens[:end])] = self.now

    def victims(self) -> list[tuple[int, ...]]:
        locked = [running.locked for running in self.running]
        return sorted(
            (
                one
                for one in self.known
                if not any(two != one and two[: len(one)] == one for two in self.known)
                and not any(lock[: len(one)] == one for lock in locked)
            ),
            key=lambda one: self.known[one],
        )

    def actual(self) -> set[tuple[int, ...]]:
        ends = set()
        for segment in self.tree.root.walk():
            tokens: list[int] = []
            for part in reversed(list(segment.upwards())):
                tokens += part.tokens
            ends.add(tuple(tokens))
        return ends - {()}

    def follow_evictions(self) -> None:
        """Evict in the model, one leaf after another, until it is what is there."""
        actual = self.actual()
        while self.known.keys() != actual:
            victim = self.victims()[0]
            assert victim not in actual
            del self.known[victim]

    # The operations.

    def write(self, running: Running, count: int) -> bool:
        old = running.table.num_tokens
        asked, free = running.table.num_missing(self.pool, count), self.pool.num_free
        try:
            copies = running.table.reserve(self.pool, count)
        except PoolExhausted:
            self.follow_evictions()
            assert not self.victims()
            return False
        if asked <= free:
            assert self.known.keys() == self.actual()
        self.follow_evictions()
        for src, dst in copies:
            for offset in range(BLOCK):
                if src * BLOCK + offset in self.slots:
                    self.slots[dst * BLOCK + offset] = self.slots[src * BLOCK + offset]
        for position in range(old, old + count):
            slot = running.table.slot(position)
            self.slots[slot] = running.tokens[: position + 1]
        return True

    def match(self, tokens: list[int]) -> tuple[list[int], int, object]:
        expected = self.longest(tokens)
        match = self.tree.match(array("I", tokens))
        assert (match.num_tokens, match.partial) == (expected, expected % BLOCK)
        if expected:
            self.known.setdefault(tuple(tokens[:expected]), 0)
        self.use(tokens)
        for position in range(expected):
            page, offset = divmod(position, BLOCK)
            slot = match.pages[page] * BLOCK + offset
            assert self.slots[slot] == tokens[: position + 1]
        return match.pages, expected, match.segment

    @rule(tokens=texts)
    def look(self, tokens: list[int]) -> None:
        self.match(tokens)

    @precondition(lambda self: len(self.running) < 4)
    @rule(tokens=texts)
    def start(self, tokens: list[int]) -> None:
        running = Running(tokens)
        pages, num_tokens, segment = self.match(tokens[:-1])
        running.table.adopt(self.pool, pages, num_tokens)
        running.locked = tuple(tokens[:num_tokens])
        self.handles[id(running)] = segment
        self.tree.lock(segment)
        self.running.append(running)
        if not self.write(running, len(tokens) - num_tokens):
            self.leave(running)

    @precondition(lambda self: self.running)
    @rule(index=picks, more=texts)
    def extend(self, index: int, more: list[int]) -> None:
        running = self.running[index % len(self.running)]
        running.tokens = running.tokens + more
        if not self.write(running, len(more)):
            running.tokens = running.tokens[: -len(more)]

    @precondition(lambda self: self.running)
    @rule(index=picks, is_over=st.booleans())
    def store(self, index: int, is_over: bool) -> None:
        running = self.running[index % len(self.running)]
        known = self.longest(running.tokens)
        pages = running.table.pages
        assert self.tree.insert(array("I", running.tokens), pages) == known
        for end in {known, len(running.tokens)} - {0}:
            self.known.setdefault(tuple(running.tokens[:end]), 0)
        self.use(running.tokens)
        if is_over:
            self.leave(running)

    @precondition(lambda self: self.running)
    @rule(index=picks)
    def abort(self, index: int) -> None:
        self.leave(self.running[index % len(self.running)])

    def leave(self, running: Running) -> None:
        self.tree.unlock(self.handles.pop(id(running)))
        self.running.remove(running)
        running.table.free(self.pool)

    @rule(num_pages=st.integers(1, 3))
    def evict(self, num_pages: int) -> None:
        free = self.pool.num_free
        freed = self.tree.evict(num_pages)
        assert self.pool.num_free == free + freed
        self.follow_evictions()
        assert freed >= num_pages or not self.victims()

    # What must hold after every step.

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity()
        self.tree.check_integrity()
        owned = [page for running in self.running for page in running.table.pages]
        for segment in self.tree.root.walk():
            owned += segment.pages
        for page in range(1, PAGES):
            assert self.pool.refs(page) == owned.count(page)

    @invariant()
    def every_request_reads_its_own_tokens(self) -> None:
        for running in self.running:
            for position in range(running.table.num_tokens):
                slot = running.table.slot(position)
                assert self.slots[slot] == running.tokens[: position + 1]

    @invariant()
    def what_is_locked_stays(self) -> None:
        for running in self.running:
            if running.locked:
                assert running.locked in self.known

    def teardown(self) -> None:
        """After any sequence of operations every page comes back."""
        for running in list(self.running):
            self.leave(running)
        self.tree.evict(PAGES)
        assert (self.tree.num_tokens, self.pool.num_referenced) == (0, 0)
        self.pool.check_integrity()


SegmentMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestSegmentMachine = SegmentMachine.TestCase
