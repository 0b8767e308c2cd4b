"""Random work on the pool against dicts of lists: contents, owners, victims, events."""

from array import array
from collections.abc import Iterable

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

from warmroute.policies.eviction.base import EvictionBase
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.kv.block_table import BlockTable
from warmroute.policies.kv.blocks import hash_tokens
from warmroute.policies.kv.pool import NULL_PAGE, BlockPool, PageMisuse, PoolExhausted

BLOCK = 2
PAGES = 11
tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=9)
picks = st.integers(0, 999)
choices = st.sets(st.integers(0, 30), max_size=6)


class Newest(Lru):
    """Give up what was used last: a rule whose victims differ from those of LRU."""

    name = "newest"
    __slots__ = ()

    def _select(self) -> int:
        return self._queue.pop_last()

    def _candidates(self) -> Iterable[int]:
        return [*self._queue][::-1]


class Events:
    """Keep the cached blocks as a listener to the events knows them."""

    def __init__(self) -> None:
        self.cached: set[int] = set()

    def stored(self, block_hash: int, parent_hash: int | None, page: int) -> None:
        assert block_hash not in self.cached
        self.cached.add(block_hash)

    def removed(self, block_hash: int, page: int) -> None:
        self.cached.remove(block_hash)

    def cleared(self) -> None:
        self.cached.clear()


class Sequence:
    """One running sequence: its table, and the tokens that must be in it."""

    def __init__(self, tokens: list[int]) -> None:
        self.table = BlockTable(BLOCK)
        self.tokens = tokens
        self.evicted: set[int] = set()

    def hashes(self) -> list[int]:
        return hash_tokens(array("I", self.tokens), BLOCK, 7)


class Model:
    """Which blocks are cached, and in which order they go, in plain lists."""

    def __init__(self) -> None:
        self.pages: dict[int, int] = {}
        self.parents: dict[int, int | None] = {}
        self.depths: dict[int, int] = {}
        self.evictable: list[int] = []
        self.front: list[int] = []
        self.demoted: set[int] = set()
        self.held: set[int] = set()
        self.takes_newest = False

    def used(self, block: int) -> bool:
        return block not in self.evictable and block not in self.front

    def take(self, block: int, is_hit: bool) -> None:
        if is_hit:
            self.demoted.discard(block)
        for queue in (self.evictable, self.front):
            if block in queue:
                queue.remove(block)

    def free(self, block: int) -> None:
        if block in self.demoted:
            self.front.insert(0, block)
        else:
            self.evictable.append(block)

    def in_order(self) -> list[int]:
        rest = self.evictable[::-1] if self.takes_newest else self.evictable
        return self.front + rest

    def forget(self, block: int) -> None:
        self.take(block, is_hit=True)
        for known in (self.pages, self.parents, self.depths):
            del known[block]

    def is_leaf(self, block: int) -> bool:
        return block not in self.parents.values()


class PoolMachine(RuleBasedStateMachine):
    @initialize()
    def start_empty(self) -> None:
        self.events = Events()
        self.pool = BlockPool(PAGES, BLOCK, observer=self.events)
        self.running: list[Sequence] = []
        self.slots: dict[int, list[int]] = {}
        self.model = Model()
        self.seen: list[int] = []

    # What the operations mean, said naively.

    def owners(self) -> dict[int, list[str]]:
        owners: dict[int, list[str]] = {}
        for number, sequence in enumerate(self.running):
            for page in sequence.table.pages:
                if page != NULL_PAGE:
                    owners.setdefault(page, []).append(f"sequence {number}")
        for block in self.model.held:
            owners.setdefault(self.model.pages[block], []).append("held")
        return owners

    def settle(self, before: dict[int, list[str]]) -> None:
        """Free in the model, tail first, what lost its last owner."""
        lost = before.keys() - self.owners().keys()
        blocks = [block for block, page in self.model.pages.items() if page in lost]
        for block in sorted(blocks, key=lambda block: -self.model.depths[block]):
            self.model.free(block)

    def expect_victims(self, count: int) -> None:
        """Evict in the model what an allocation of *count* pages has to."""
        taken = self.owners().keys() | set(self.model.pages.values())
        num_blank = PAGES - 1 - len(taken)
        for block in self.model.in_order()[: max(0, count - num_blank)]:
            self.model.forget(block)

    def grow(self, sequence: Sequence, count: int) -> bool:
        table, old = sequence.table, sequence.table.num_tokens
        asked = table.num_missing(self.pool, count)
        available = PAGES - 1 - len(self.owners())
        if asked > available:
            before = repr(table)
            with pytest.raises(PoolExhausted) as failed:
                table.reserve(self.pool, count)
            assert (failed.value.asked, failed.value.free) == (asked, available)
            assert repr(table) == before
            return False
        copies = table.reserve(self.pool, count)
        for src, dst in copies:
            for offset in range(BLOCK):
                if src * BLOCK + offset in self.slots:
                    self.slots[dst * BLOCK + offset] = self.slots[src * BLOCK + offset]
        for position in range(old, old + count):
            self.slots[table.slot(position)] = sequence.tokens[: position + 1]
        return True

    def register(self, sequence: Sequence) -> None:
        hashes = sequence.hashes()
        self.seen += [block for block in hashes if block not in self.seen]
        for depth, block in enumerate(hashes):
            page = sequence.table.pages[depth]
            if page == NULL_PAGE:
                continue
            parent = hashes[depth - 1] if depth else None
            is_here = self.pool.register(page, block, parent, depth)
            if block not in self.model.pages:
                self.model.pages[block] = page
                self.model.parents[block] = parent
                self.model.depths[block] = depth
            elif not self.model.used(block):
                self.model.pages[block] = page
                self.model.take(block, is_hit=True)
            assert is_here == (self.model.pages[block] == page)

    def chosen(self, choices: set[int]) -> list[int]:
        return [self.seen[index] for index in choices if index < len(self.seen)]

    def pick(self, index: int) -> Sequence:
        return self.running[index % len(self.running)]

    @precondition(lambda self: len(self.running) < 5)
    @rule(tokens=tokens_of)
    def start(self, tokens: list[int]) -> None:
        sequence = Sequence(tokens)
        hits = sequence.hashes()[: (len(tokens) - 1) // BLOCK]
        pages = self.pool.lookup(hits)
        expected = []
        for block in hits:
            if block not in self.model.pages:
                break
            expected.append(self.model.pages[block])
        assert pages == expected
        sequence.table.adopt(self.pool, pages, len(pages) * BLOCK)
        for block in hits[: len(pages)]:
            self.model.take(block, is_hit=True)
        self.running.append(sequence)
        missing = len(tokens) - len(pages) * BLOCK
        if -(-missing // BLOCK) <= PAGES - 1 - len(self.owners()):
            self.expect_victims(-(-missing // BLOCK))
        if self.grow(sequence, missing):
            self.register(sequence)
        else:
            self.finish(len(self.running) - 1)

    @precondition(lambda self: self.running)
    @rule(index=picks, tokens=tokens_of)
    def extend(self, index: int, tokens: list[int]) -> None:
        for token in tokens:
            self.append(self.pick(index), token)

    def append(self, sequence: Sequence, token: int) -> None:
        before, table = self.owners(), sequence.table
        asked = table.num_missing(self.pool, 1)
        if asked <= PAGES - 1 - len(before):
            self.expect_victims(asked)
        sequence.tokens.append(token)
        if self.grow(sequence, 1):
            self.settle(before)
            self.register(sequence)
        else:
            sequence.tokens.pop()

    @precondition(lambda self: 0 < len(self.running) < 5)
    @rule(index=picks, token=st.integers(0, 1), is_child_first=st.booleans())
    def fork(self, index: int, token: int, is_child_first: bool) -> None:
        parent = self.pick(index)
        child = Sequence(list(parent.tokens))
        child.evicted = set(parent.evicted)
        child.table = parent.table.fork(self.pool)
        self.running.append(child)
        first, second = (child, parent) if is_child_first else (parent, child)
        self.append(first, token)
        self.append(second, 1 - token)

    @precondition(lambda self: self.running)
    @rule(index=picks)
    def finish(self, index: int) -> None:
        before = self.owners()
        self.running.pop(index % len(self.running)).table.free(self.pool)
        self.settle(before)

    @precondition(lambda self: self.running)
    @rule(index=picks, where=picks)
    def drop(self, index: int, where: int) -> None:
        sequence = self.pick(index)
        num_full = len(sequence.tokens) // BLOCK
        if num_full:
            before = self.owners()
            sequence.table.drop(self.pool, where % num_full)
            sequence.evicted.add(where % num_full)
            self.settle(before)

    @precondition(lambda self: self.running)
    @rule(index=picks, where=picks)
    def truncate(self, index: int, where: int) -> None:
        sequence = self.pick(index)
        keep = where % (len(sequence.tokens) + 1)
        before = self.owners()
        if keep % BLOCK and keep // BLOCK in sequence.evicted:
            with pytest.raises(PageMisuse, match="inside an evicted page"):
                sequence.table.truncate(self.pool, keep)
        else:
            sequence.table.truncate(self.pool, keep)
            del sequence.tokens[keep:]
            sequence.evicted = {
                page for page in sequence.evicted if page < keep // BLOCK
            }
            self.settle(before)

    @precondition(lambda self: self.seen)
    @rule(choices=choices)
    def evict(self, choices: set[int]) -> None:
        named = [block for block in self.chosen(choices) if block in self.model.pages]
        expected = []
        for block in sorted(named, key=lambda block: -self.model.depths[block]):
            if not self.model.used(block) and self.model.is_leaf(block):
                self.model.forget(block)
                expected.append(block)
        dropped = self.pool.evict(self.chosen(choices))
        assert sorted(dropped) == sorted(expected)

    @precondition(lambda self: self.seen)
    @rule(index=picks)
    def demote(self, index: int) -> None:
        block = self.seen[index % len(self.seen)]
        assert self.pool.demote([block]) == (block in self.model.pages)
        if block in self.model.pages:
            was_used = self.model.used(block)
            self.model.take(block, is_hit=False)
            self.model.demoted.add(block)
            if not was_used:
                self.model.free(block)

    @precondition(lambda self: self.seen)
    @rule(choices=choices)
    def hold(self, choices: set[int]) -> None:
        named = self.model.pages.keys() & set(self.chosen(choices))
        fresh = named - self.model.held
        assert self.pool.hold(self.chosen(choices)) == len(fresh)
        for block in fresh:
            self.model.take(block, is_hit=False)
        self.model.held |= fresh

    @precondition(lambda self: self.seen)
    @rule(index=picks)
    def unhold(self, index: int) -> None:
        before = self.owners()
        block = self.seen[index % len(self.seen)]
        assert self.pool.unhold([block, block]) == (block in self.model.held)
        self.model.held.discard(block)
        self.settle(before)

    @precondition(lambda self: self.model.pages)
    @rule()
    def flush(self) -> None:
        for block in self.model.in_order():
            self.model.forget(block)
        assert self.pool.flush() == (not self.owners())

    @rule(takes_newest=st.booleans())
    def swap_policy(self, takes_newest: bool) -> None:
        kind: type[EvictionBase] = Newest if takes_newest else Lru
        self.pool.set_policy(kind(capacity=PAGES - 1, clock=lambda: 0.0))
        assert self.pool.policy.name == kind.name
        self.model.evictable = self.model.in_order()
        self.model.front, self.model.demoted = [], set()
        self.model.takes_newest = takes_newest

    @rule(page=st.integers(1, PAGES - 1))
    def misuse(self, page: int) -> None:
        before = (repr(self.pool), self.pool.snapshot())
        num_owners = len(self.owners().get(page, []))
        with pytest.raises(PageMisuse, match=f"page {page} is released"):
            self.pool.release([page] * (num_owners + 1))
        if not num_owners and page not in self.model.pages.values():
            with pytest.raises(PageMisuse, match="is shared but blank"):
                self.pool.share([page])
        with pytest.raises(PoolExhausted):
            self.pool.allocate(PAGES - len(self.owners()))
        assert (repr(self.pool), self.pool.snapshot()) == before

    # What must hold after every step.

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity()
        owners = self.owners()
        for page in range(1, PAGES):
            assert self.pool.refs(page) == len(owners.get(page, []))
        assert self.pool.num_referenced == len(owners)
        assert self.pool.num_free == PAGES - 1 - len(owners)
        assert self.pool.num_held == len(self.model.held)

    @invariant()
    def cached_blocks_agree(self) -> None:
        snapshot = self.pool.snapshot()
        assert {row.block_hash: row.page for row in snapshot} == self.model.pages
        assert self.events.cached == self.model.pages.keys()
        for row in snapshot:
            assert row.refs == self.pool.refs(row.page)
            assert row.parent_hash == self.model.parents[row.block_hash]

    @invariant()
    def victims_agree(self) -> None:
        expected = self.model.in_order()
        assert self.pool.policy.resident()[: len(expected)] == expected

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for sequence in self.running:
            assert sequence.table.num_tokens == len(sequence.tokens)
            for position in range(len(sequence.tokens)):
                if position // BLOCK not in sequence.evicted:
                    slot = sequence.table.slot(position)
                    assert self.slots[slot] == sequence.tokens[: position + 1]

    def teardown(self) -> None:
        """After any sequence of operations nothing leaks: every page comes back."""
        while self.running:
            self.finish(0)
        self.pool.unhold(list(self.model.held))
        assert self.pool.flush()
        self.pool.check_integrity()
        assert sorted(self.pool.allocate(PAGES - 1)) == list(range(1, PAGES))
        assert not self.events.cached


PoolMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestPoolMachine = PoolMachine.TestCase
