"""The plugin's work on vLLM's pool, on a fake of that pool."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from unit.fake_vllm_pool import FakePool, FakeRequest, key

from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.eviction import Evictor
from warmroute.adapters.vllm.plugin.holds import PoolHolds
from warmroute.adapters.vllm.plugin.installation import watched
from warmroute.adapters.vllm.plugin.ordering import Ordering
from warmroute.adapters.vllm.plugin.policy_queue import PolicyQueue
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.kv.retention import Retention

SIZE = 2


class Rig:
    """A pool that the plugin watches."""

    def __init__(self, num_blocks: int = 13) -> None:
        self.pool = FakePool(num_blocks, SIZE)
        self.contents = Contents(self.pool, SIZE, lambda *_: None)
        cache = self.pool.cache_full_blocks
        self.pool.cache_full_blocks = watched(cache, self.contents)
        self.evictor = Evictor(self.pool, self.contents)
        self.time = 0.0
        self.ordering = Ordering(self.pool, self.contents, lambda: self.time)

    def send(self, first: int, blocks: int = 4) -> int:
        """Run a prompt to its end; returns the blocks hit."""
        request = prompt(first, blocks)
        hits = self.pool.run(request)
        self.pool.finish(request)
        return hits

    def change(self, name: str, **options: object) -> None:
        for _ in self.ordering.change(name, options):
            self.pool.check()

    def drop(self, keys: list[int]) -> tuple[list[int], dict[int, str]]:
        evicted, kept = [], {}
        for done in self.evictor.drop([keys]):
            evicted += done.evicted
            kept.update(done.kept)
        return evicted, kept


def prompt(first: int, blocks: int = 4) -> FakeRequest:
    return FakeRequest([first * 100 + at for at in range(blocks * SIZE)], SIZE)


def keys(first: int, blocks: int = 4) -> list[int]:
    return [key(one) for one in prompt(first, blocks).block_hashes]


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestContents:
    def test_tells_parents_depths_and_tokens(self, rig: Rig) -> None:
        rig.send(1, 3)
        chain = keys(1, 3)
        found = [rig.contents.get(one) for one in chain]
        assert [one.parent for one in found if one] == [None, *chain[:2]]
        assert [one.depth for one in found if one] == [0, 1, 2]
        assert [list(one.tokens) for one in found if one][1] == [102, 103]

    def test_forgets_what_no_page_holds(self, rig: Rig) -> None:
        for first in range(40):
            rig.send(first)
        assert len(rig.contents) <= 12
        assert rig.contents.get(keys(0)[0]) is None

    def test_a_copy_is_known_by_both_pages(self, rig: Rig) -> None:
        """vLLM computes the last block of an aligned prompt again."""
        rig.send(1)
        tail = prompt(1).block_hashes[-1]
        page = rig.pool.free_block_queue.popleft()
        rig.pool.put(tail, page)
        assert len(rig.contents.pages(key(tail))) == 2


class TestEvict:
    def test_cuts_from_the_end(self, rig: Rig) -> None:
        rig.send(1)
        chain = keys(1)
        assert rig.drop(chain[2:]) == (chain[:1:-1], {})
        assert rig.send(1) == 2

    def test_a_block_with_one_behind_it_stays(self, rig: Rig) -> None:
        rig.send(1)
        chain = keys(1)
        assert rig.drop(chain[:2]) == (
            [],
            {chain[0]: "followed", chain[1]: "followed"},
        )
        assert rig.send(1) == 4

    def test_what_a_request_uses_stays(self, rig: Rig) -> None:
        request = prompt(1)
        rig.pool.run(request)
        evicted, kept = rig.drop([*keys(1), 7])
        assert not evicted
        assert kept == {**dict.fromkeys(keys(1), "referenced"), 7: "absent"}
        rig.pool.finish(request)
        rig.pool.check()

    def test_a_fork_keeps_the_common_head(self, rig: Rig) -> None:
        rig.send(1, 4)
        other = FakeRequest([100, 101, 9, 9], SIZE)
        rig.pool.run(other)
        rig.pool.finish(other)
        evicted, kept = rig.drop(keys(1))
        assert evicted == keys(1)[:0:-1]
        assert kept == {keys(1)[0]: "followed"}

    def test_all_copies_go(self, rig: Rig) -> None:
        rig.send(1)
        tail = prompt(1).block_hashes[-1]
        page = rig.pool.free_block_queue.popleft()
        rig.pool.put(tail, page)
        rig.pool.free_block_queue.append_n([page])
        assert rig.drop([key(tail)])[0] == [key(tail)]
        assert not rig.contents.pages(key(tail))
        rig.pool.check()

    def test_pages_given_up_are_used_first(self, rig: Rig) -> None:
        rig.send(1)
        rig.send(2)
        rig.drop(keys(1))
        rig.send(3)
        assert rig.send(2) == 4

    def test_no_page_is_lost_when_vllm_raises(self, rig: Rig) -> None:
        rig.send(1)
        rig.pool.evict_blocks = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError):
            rig.drop(keys(1))
        rig.pool.check()


def broken(block_ids: set[int]) -> None:
    raise RuntimeError("changed")


def demoted(rig: Rig, chain: list[int]) -> int:
    return sum(rig.evictor.demote([chain]))


class TestDemote:
    @pytest.mark.parametrize(("victim", "survivor"), [(2, 1), (1, 2)])
    def test_demoted_blocks_go_first(
        self, rig: Rig, victim: int, survivor: int
    ) -> None:
        for first in (1, 2, 3):
            rig.send(first)
        assert demoted(rig, keys(victim)) == 4
        rig.send(4)
        assert rig.send(survivor) == 4

    def test_the_tail_goes_before_the_head(self, rig: Rig) -> None:
        for first in (1, 2, 3):
            rig.send(first)
        demoted(rig, keys(3))
        rig.send(4, 2)
        assert rig.send(3) == 2


class TestRetain:
    def test_many_that_are_due_go_some_at_a_time(self, rig: Rig) -> None:
        holds = PoolHolds(rig.pool, rig.contents)
        retention = Retention(holds, 0.5, clock=lambda: rig.time, at_most=3)
        rig.send(1)
        retention.retain(keys(1), 5.0)
        rig.time = 6.0
        assert (retention.expire(), retention.due_s) == (3, 0.0)
        assert (retention.expire(), retention.due_s) == (1, None)

    def test_what_was_put_off_is_not_passed_over(self, rig: Rig) -> None:
        rig.send(1, 8)
        holds = PoolHolds(rig.pool, rig.contents)
        retention = Retention(holds, 1.0, clock=lambda: rig.time, at_most=3)
        for ttl_s in (10.0, 60.0):
            assert retention.retain(keys(1, 8), ttl_s) == 8
        rig.time = 10.0
        assert retention.expire() == 0
        assert retention.due_s == 50.0
        rig.time = 60.0
        assert (retention.expire(), retention.due_s) == (3, 0.0)

    def test_in_slices_it_is_let_go_from_the_tail_as_well(self, rig: Rig) -> None:
        """However long those take: the tail is of no use without the head."""
        rig.send(1)
        holds = PoolHolds(rig.pool, rig.contents)
        retention = Retention(holds, 1.0, clock=lambda: rig.time, at_most=1)
        for num_retained in retention.retain_in_slices(keys(1), 5.0, 2):
            assert num_retained == 2
            rig.time += 1.0
        rig.time = 6.0
        while retention.expire():
            pass
        pages = rig.pool.free_block_queue.get_all_free_blocks()[-4:]
        held = [page.block_hash for page in pages]
        assert held == [one + bytes(4) for one in prompt(1).block_hashes[::-1]]

    def test_survives_a_full_pool_until_it_is_due(self, rig: Rig) -> None:
        holds = PoolHolds(rig.pool, rig.contents)
        retention = Retention(holds, 0.5, clock=lambda: rig.time)
        rig.send(1)
        assert retention.retain(keys(1), 5.0) == 4
        for first in range(2, 9):
            rig.send(first)
        assert rig.pool.get_num_free_blocks() == 8
        rig.time = 6.0
        retention.expire()
        assert rig.pool.get_num_free_blocks() == 12
        assert rig.send(1) == 4
        for first in range(2, 9):
            rig.send(first)
        assert rig.send(1) == 0


class TestOrdering:
    def test_nothing_is_replaced_by_vllms_own_order(self, rig: Rig) -> None:
        queue = rig.pool.free_block_queue
        rig.change("lru")
        assert rig.pool.free_block_queue is queue

    @pytest.mark.parametrize(("name", "hits"), [("lfu", 4), ("lru", 0)])
    def test_lfu_keeps_what_lru_loses(self, rig: Rig, name: str, hits: int) -> None:
        rig.change(name)
        for _ in range(4):
            rig.send(1)
        for first in range(2, 9):
            rig.send(first)
        assert rig.send(1) == hits

    def test_what_was_cached_before_stays_and_goes_first(self, rig: Rig) -> None:
        rig.send(1)
        rig.change("lfu")
        rig.send(2)
        assert rig.send(1) == 4
        rig.send(3)
        rig.change("arc")
        assert (rig.send(1), rig.send(2)) == (4, 4)

    def test_going_back_leaves_vllms_own_queue(self, rig: Rig) -> None:
        queue = rig.pool.free_block_queue
        for name in ("lfu", "arc", "s3fifo"):
            rig.change(name)
            rig.send(1)
            rig.send(2)
            assert rig.ordering.name == name
        rig.change("lru")
        assert rig.pool.free_block_queue is queue
        assert rig.pool.touch.__func__ is FakePool.touch  # type: ignore[attr-defined]
        assert rig.send(1) == 4

    def test_a_change_that_was_left_off_is_ended_by_the_next(self, rig: Rig) -> None:
        rig.change("lfu")
        rig.send(1)
        next(rig.ordering.change("arc", {}))
        rig.send(2)
        rig.pool.check()
        rig.change("lru")
        assert not isinstance(rig.pool.free_block_queue, PolicyQueue)
        assert rig.send(1) == 4

    def test_what_is_in_use_is_let_go_in_slices_too(self, rig: Rig) -> None:
        """Pages that requests use are known to a policy that goes, and come back."""
        rig.change("lfu")
        rig.send(1, 8)
        request = prompt(1, 8)
        rig.pool.run(request)
        queue = rig.pool.free_block_queue
        assert isinstance(queue, PolicyQueue)
        queue.retire()
        known = [len(queue.policy)]
        while queue.drain(3):
            known.append(len(queue.policy))
        assert known[0] == 8
        assert max(before - left for before, left in pairwise(known)) <= 3
        assert known[-1] == 0
        rig.pool.finish(request)
        rig.pool.check()
        assert rig.send(1, 8) == 8

    def test_a_hit_on_a_page_in_use_counts(self, rig: Rig) -> None:
        rig.change("lfu")
        rig.send(1)
        first, second = prompt(1), prompt(1)
        rig.pool.run(first)
        policy = rig.pool.free_block_queue.policy
        told: list[int] = []
        policy.__class__ = type(
            "Spy", (type(policy),), {"touched": told_by(told), "__slots__": ()}
        )
        rig.pool.run(second)
        assert told == keys(1)

    def test_what_is_dropped_or_demoted_is_not_used(self, rig: Rig) -> None:
        """A policy that counted that would learn that the operator's victims pay."""
        rig.change("lfu")
        rig.send(1)
        rig.send(2)
        policy = rig.pool.free_block_queue.policy
        told: list[int] = []
        policy.__class__ = type(
            "Spy", (type(policy),), {"touched": told_by(told), "__slots__": ()}
        )
        rig.drop(keys(1))
        assert demoted(rig, keys(2)) == 4
        assert told == []

    def test_what_comes_back_after_a_reset_is_ranked_again(self, rig: Rig) -> None:
        """Its former page may be ranked still: vLLM tells nobody of a reset."""
        rig.change("lfu")
        for _ in range(2):
            for _ in range(4):
                rig.send(1)
            for first in range(2, 9):
                rig.send(first)
                rig.pool.check()
            assert rig.send(1) == 4
            assert rig.pool.reset_prefix_cache()

    def test_a_page_in_use_that_lost_its_content_is_given_to_nobody(
        self, rig: Rig
    ) -> None:
        """So vLLM does where a connector could not load what was to be there."""
        rig.change("lfu")
        rig.send(1)
        request = prompt(1)
        rig.pool.run(request)
        rig.pool.evict_blocks({page.block_id for page in request.pages})
        assert rig.send(1) == 0
        rig.pool.check()
        rig.pool.finish(request)
        rig.pool.check()
        assert rig.send(1) == 4


def told_by(told: list[int]):
    return lambda self, block: told.append(block)


class FailingPolicy(Lru):
    """A fake policy that breaks in one of its methods."""

    name = "failing"


class TestFailingPolicy:
    @pytest.mark.parametrize("method", ["inserted", "held", "freed", "evict"])
    def test_is_given_up_and_no_page_is_lost(
        self, rig: Rig, method: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        policy = FailingPolicy(capacity=12, clock=lambda: 0.0)
        queue = PolicyQueue(
            rig.pool.free_block_queue, policy, rig.contents, rig.pool.blocks
        )
        rig.pool.free_block_queue = queue
        rig.send(1)
        fault = type("Broken", (FailingPolicy,), {method: raising})
        policy.__class__ = fault
        for first in (1, 2, 3, 4, 5):
            rig.send(first)
            rig.pool.check()
        assert queue.policy is None
        assert "failing raised" in caplog.text

    def test_one_that_names_too_few_victims_is_given_up(self, rig: Rig) -> None:
        policy = FailingPolicy(capacity=12, clock=lambda: 0.0)
        queue = PolicyQueue(
            rig.pool.free_block_queue, policy, rig.contents, rig.pool.blocks
        )
        rig.pool.free_block_queue = queue
        for first in (1, 2, 3):
            rig.send(first)
        policy.__class__ = type("Lazy", (FailingPolicy,), {"evict": lambda *_: []})
        assert rig.send(4) == 0
        assert queue.policy is None
        rig.pool.check()

    def test_one_that_names_too_many_victims_is_given_up(self, rig: Rig) -> None:
        policy = FailingPolicy(capacity=12, clock=lambda: 0.0)
        queue = PolicyQueue(
            rig.pool.free_block_queue, policy, rig.contents, rig.pool.blocks
        )
        rig.pool.free_block_queue = queue
        for first in (1, 2, 3):
            rig.send(first)

        def greedy(policy: FailingPolicy, count: int) -> list[int]:
            return Lru.evict(policy, count + 2)

        policy.__class__ = type("Greedy", (FailingPolicy,), {"evict": greedy})
        assert len(queue.popleft_n(3)) == 3
        assert queue.policy is None
        assert queue.num_free_blocks == 9
        assert len(queue.popleft_n(9)) == 9

    def test_what_it_ranked_stays_and_goes_behind_the_others(self, rig: Rig) -> None:
        native = rig.pool.free_block_queue
        rig.change("lfu")
        for first in (1, 2):
            rig.send(first)
        queue = rig.pool.free_block_queue
        break_policy(queue)
        assert rig.send(1) == 4
        assert queue.policy is None
        assert (native.num_free_blocks, queue.num_free_blocks) == (8, 12)
        left = queue.get_all_free_blocks()
        assert queue.popleft_n(12) == left
        queue.prepend_n(left)
        rig.pool.check()

    def test_one_that_cannot_forget_is_given_up(self, rig: Rig) -> None:
        """Or the policy could never be changed again."""
        rig.change("lrfu")
        rig.send(1)
        policy = rig.pool.free_block_queue.policy
        broken = {"forget_gone": raising, "__slots__": ()}
        policy.__class__ = type("Broken", (type(policy),), broken)
        rig.change("lru")
        assert not isinstance(rig.pool.free_block_queue, PolicyQueue)
        assert rig.send(1) == 4

    def test_its_tables_are_not_freed_in_a_step_of_the_engine(self, rig: Rig) -> None:
        rig.change("lfu")
        rig.send(1)
        queue = rig.pool.free_block_queue
        facts = queue.policy._facts
        break_policy(queue)
        rig.send(1)
        assert queue.policy is None
        assert len(facts) == 4
        queue.retire()
        while queue.drain(8):
            pass
        assert sum(1 for _ in queue.dismantle()) > 64
        assert facts.tables == []

    def test_and_goes_back_in_slices_when_the_policy_is_changed(self, rig: Rig) -> None:
        native = rig.pool.free_block_queue
        rig.change("lfu")
        for first in (1, 2, 3):
            rig.send(first)
        queue = rig.pool.free_block_queue
        break_policy(queue)
        assert rig.send(1) == 4
        assert rig.ordering.name == "lru"
        rig.change("lru")
        assert rig.pool.free_block_queue is native
        assert native.num_free_blocks == 12


def break_policy(queue: PolicyQueue) -> None:
    kind = type(queue.policy)
    broken = type("Broken", (kind,), {"held": raising, "__slots__": ()})
    queue.policy.__class__ = broken  # type: ignore[misc,assignment]


def raising(*arguments: object) -> None:
    raise ValueError("broken")


class QueueMachine(RuleBasedStateMachine):
    """Requests, verbs and changes of policy in any order lose no page."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(17)
        self.running: list[FakeRequest] = []
        self.changes: Iterator[None] | None = None
        holds = PoolHolds(self.rig.pool, self.rig.contents)
        self.retention = Retention(holds, 0.4, clock=lambda: self.rig.time)

    @rule(first=st.integers(0, 9), blocks=st.integers(1, 5))
    def start(self, first: int, blocks: int) -> None:
        if self.rig.pool.get_num_free_blocks() >= blocks:
            request = prompt(first, blocks)
            self.rig.pool.run(request)
            self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.running) - 1))
        self.rig.pool.finish(self.running.pop(at))

    @rule(first=st.integers(0, 9), skip=st.integers(0, 4))
    def evict(self, first: int, skip: int) -> None:
        self.rig.drop(keys(first, 5)[skip:])

    @rule(first=st.integers(0, 9))
    def demote(self, first: int) -> None:
        demoted(self.rig, keys(first, 5))

    @rule(first=st.integers(0, 9), ttl=st.floats(0.1, 9.0))
    def retain(self, first: int, ttl: float) -> None:
        self.retention.retain(keys(first, 5), ttl)

    @rule(seconds=st.floats(0.1, 9.0))
    def wait(self, seconds: float) -> None:
        self.rig.time += seconds
        self.retention.expire()

    @rule(name=st.sampled_from(["lru", "lfu", "arc", "s3fifo", "lrfu", "gdsf"]))
    def change(self, name: str) -> None:
        self.changes = self.rig.ordering.change(name, {})
        next(self.changes, None)

    @precondition(lambda self: self.changes)
    @rule()
    def change_on(self) -> None:
        assert self.changes is not None
        next(self.changes, None)

    @invariant()
    def every_page_is_where_it_belongs(self) -> None:
        self.rig.pool.check()
        queue = self.rig.pool.free_block_queue
        assert list(queue.iter_blocks_after(None)) == queue.get_all_free_blocks()

    @invariant()
    def no_policy_was_given_up(self) -> None:
        queue = self.rig.pool.free_block_queue
        while isinstance(queue, PolicyQueue):
            assert queue.policy is not None
            queue = queue.native

    @invariant()
    def what_is_cached_is_known(self) -> None:
        for one in self.rig.pool.cached_block_hash_to_block._cache:
            assert self.rig.contents.get(key(one[:-4])) is not None

    def teardown(self) -> None:
        self.rig.time += 1e6
        self.retention.expire()
        for request in self.running:
            self.rig.pool.finish(request)
        assert self.rig.pool.get_num_free_blocks() == 16


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
