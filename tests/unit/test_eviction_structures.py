"""The queues and heaps of the eviction rules against plain lists."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.eviction.block_heap import BlockHeap
from warmroute.policies.eviction.block_queue import BlockQueue
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.eviction.leaf_heap import LeafHeap

blocks = st.integers(0, 9)


class TestBlockHeap:
    @given(seed=st.integers(0, 2**32))
    def test_pops_the_least_key_of_the_last_that_was_given(self, seed: int) -> None:
        """Keys may rise and fall; the heap is always a sorted list of the latest."""
        rng = Random(seed)
        heap, keys = BlockHeap(), dict[int, tuple[float, int]]()
        for time in range(200):
            verb = rng.choice(["put", "put", "put", "discard", "pop"])
            block, score = rng.randrange(10), rng.randrange(50)
            if verb == "put":
                keys[block] = (score, time)
                heap.put(block, keys[block])
            elif verb == "discard":
                keys.pop(block, None)
                heap.discard(block)
            elif keys:
                least = min(keys, key=keys.__getitem__)
                assert heap.pop() == (least, keys.pop(least))
            assert heap.ordered() == sorted(keys, key=keys.__getitem__)
            assert len(heap) == len(keys)

    def test_stale_entries_are_bounded(self) -> None:
        """However often keys fall, entries stay within twice the blocks and a rest."""
        heap = BlockHeap()
        for time in range(5000):
            heap.put(time % 10, (-time, 0))
        assert len(heap._entries) <= 2 * 10 + 65


class TestBlockQueue:
    @given(
        steps=st.lists(
            st.tuples(st.sampled_from(["push", "block", "unblock", "pop"]), blocks),
            max_size=120,
        )
    )
    def test_blocked_ones_are_passed_over(self, steps: list[tuple[str, int]]) -> None:
        """It gives up unblocked blocks only, each once, and counts them."""
        queue, order, blocked = BlockQueue(), list[int](), set[int]()
        for verb, block in steps:
            if verb == "push" and block not in order:
                queue.push(block)
                order.append(block)
            elif verb == "block" and block in order:
                queue.block(block)
                blocked.add(block)
            elif verb == "unblock" and block in blocked:
                queue.unblock(block)
                blocked.remove(block)
            elif verb == "pop" and set(order) - blocked:
                popped = queue.pop()
                assert popped in set(order) - blocked
                order.remove(popped)
            assert len(queue) == len(order)
            assert queue.num_ready == len(order) - len(blocked)
            assert set(queue.ready()) == set(order) - blocked

    def test_a_blocked_one_is_first_again(self) -> None:
        """Passed over at the front, it is at the front once it is unblocked."""
        queue = BlockQueue()
        for block in (1, 2, 3):
            queue.push(block)
        queue.block(1)
        assert queue.pop() == 2
        queue.unblock(1)
        assert [queue.pop(), queue.pop()] == [1, 3]


class TestLeafHeap:
    def test_parents_wait_for_their_children(self) -> None:
        """A lower key does not help a block whose child is there."""
        heap = LeafHeap()
        heap.put(1, (0.0, 0))
        heap.add_child(1)
        heap.put(2, (5.0, 0))
        assert heap.ordered() == [2, 1]
        assert heap.pop()[0] == 2
        heap.drop_child(1)
        heap.put(3, (9.0, 0))
        assert [heap.pop()[0], heap.pop()[0]] == [1, 3]

    def test_a_parent_goes_when_nothing_else_is_there(self) -> None:
        """Where all leaves are elsewhere the least of the others is taken."""
        heap = LeafHeap()
        heap.add_child(1)
        heap.put(1, (0.0, 0))
        assert heap.pop()[0] == 1


class TestGhosts:
    def test_the_oldest_are_forgotten(self) -> None:
        """Only so many are remembered, and one that returns is a ghost no more."""
        ghosts: Ghosts[str] = Ghosts(2)
        for block in (1, 2, 3):
            ghosts.remember(block, f"block {block}")
        assert ghosts.recall(1) is None
        assert ghosts.recall(2) == "block 2"
        assert ghosts.recall(2) is None
        assert repr(ghosts) == "<Ghosts [Blocks: 1 of 2]>"
