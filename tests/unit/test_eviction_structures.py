"""The queues and heaps of the eviction rules against plain lists."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmroute.policies.eviction.block_order import block_order
from warmroute.policies.eviction.block_queue import BlockQueue
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.eviction.leaf_heap import LeafHeap
from warmroute.policies.kv.block_heap import BlockHeap

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
        assert heap.num_entries <= 2 * 10 + 65

    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=10, deadline=None)
    def test_many_are_in_pieces_and_still_in_order(self, seed: int) -> None:
        """Whatever thousands of blocks do, the least goes, and few are stale."""
        rng = Random(seed)
        heap, keys = BlockHeap(), dict[int, tuple[float, int]]()
        for time in range(12_000):
            block = rng.randrange(3_000)
            verb = rng.choices(["put", "discard", "pop"], [6, 1 + time // 3_000, 1])[0]
            if verb == "put":
                keys[block] = (rng.randrange(50), time)
                heap.put(block, keys[block])
            elif verb == "discard":
                assert heap.discard(block) == keys.pop(block, None)
            elif keys:
                block, key = heap.pop()
                assert key == keys.pop(block) <= min(keys.values(), default=key)
            assert heap.num_entries <= 4 * len(keys) + 512
        heap.check_integrity()
        assert heap.ordered() == sorted(keys, key=keys.__getitem__)
        assert [heap.pop()[0] for _ in range(len(heap))] == sorted(
            keys, key=keys.__getitem__
        )

    def test_many_that_left_are_not_passed_over(self) -> None:
        """Where the least 30,000 have left, the next one is found at once."""
        heap = BlockHeap()
        for block in range(40_000):
            heap.put(block, (block, 0))
        for block in range(30_000):
            heap.discard(block)
        before = heap.num_entries
        assert heap.pop()[0] == 30_000
        assert before - heap.num_entries <= 512

    @pytest.mark.parametrize("sign", [1, -1])
    def test_pieces_that_came_and_went_are_not_looked_at_again(self, sign: int) -> None:
        """However often keys rise or fall, no more is kept in order than there is."""
        heap = BlockHeap()
        heap.put(0, (-1e9, 0))  # nothing behind it ever comes to the front
        for time in range(50_000):
            heap.put(1 + time % 600, (sign * time, 0))
        heap.check_integrity()
        assert heap.pop()[0] == 0
        assert heap.first()[1][0] == (49_400 if sign > 0 else -49_999)

    def test_what_left_at_the_front_of_all_pieces_is_not_left_to_one_call(self) -> None:
        """No later call has to pass over it in one piece after the other."""
        heap, rng = BlockHeap(), Random(1)
        keys = [rng.random() for _ in range(20_000)]
        for block, score in enumerate(keys):
            heap.put(block, (score, 0))
        for block, score in enumerate(keys):
            if 0 < score < 0.5:
                heap.discard(block)
        heap.check_integrity()
        assert heap.first()[1][0] == min(score for score in keys if score >= 0.5)


class TestBlockOrder:
    @pytest.mark.parametrize("most", [9, 100_000])
    @given(seed=st.integers(0, 2**32))
    def test_is_a_list_that_changes_at_its_ends(self, most: int, seed: int) -> None:
        rng = Random(seed)
        order, model = block_order(most), list[int]()
        for _ in range(200):
            verb = rng.choice(["push", "push", "renew", "discard", "pop", "pop_last"])
            block = rng.randrange(10)
            if verb == "push" and block not in model:
                order.push(block)
                model.append(block)
            elif verb in ("renew", "discard"):
                assert getattr(order, verb)(block) == (block in model)
                model = [one for one in model if one != block]
                model += [block] if verb == "renew" and block in order else []
            elif verb == "pop" and model:
                assert order.first() == model[0]
                assert order.pop() == model.pop(0)
            elif verb == "pop_last" and model:
                assert order.pop_last() == model.pop()
            assert [*order] == model
            assert len(order) == len(model)
            assert all((one in order) == (one in model) for one in range(10))

    def test_there_is_room_for_more_than_were_announced(self) -> None:
        """What is in keeps its order when there is no place left."""
        order = block_order(9_000)
        for block in range(30_000):
            order.push(block)
        assert order.discard(7)
        order.push(30_000)
        assert [*order] == [*range(7), *range(8, 30_001)]


class TestBlockQueue:
    @given(
        steps=st.lists(
            st.tuples(st.sampled_from(["push", "block", "unblock", "pop"]), blocks),
            max_size=120,
        )
    )
    def test_blocked_ones_are_passed_over(self, steps: list[tuple[str, int]]) -> None:
        """It gives up unblocked blocks only, each once, and counts them."""
        queue, order, blocked = BlockQueue(9), list[int](), set[int]()
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

    @given(seed=st.integers(0, 2**32))
    def test_blocked_ones_keep_their_place_or_are_first(self, seed: int) -> None:
        """Those that one behind them went before come to the front, the last first."""
        rng = Random(seed)
        queue, order, blocked = BlockQueue(9), list[int](), set[int]()
        passed, in_front = set[int](), set[int]()
        for new in range(300):
            verb = rng.choice(["push", "block", "unblock", "pop", "discard"])
            some = [one for one in order if (one in blocked) == (verb == "unblock")]
            if verb == "push" or not some:
                queue.push(new)
                order.append(new)
                continue
            block = rng.choice(some)
            if verb == "block":
                queue.block(block)
                blocked.add(block)
            elif verb == "unblock":
                queue.unblock(block)
                blocked.remove(block)
                if block in passed:
                    order.remove(block)
                    order.insert(0, block)
                    passed.remove(block)
                    in_front.add(block)
            elif verb == "pop":
                block = next(one for one in order if one not in blocked)
                assert queue.pop() == block
                if block not in in_front:
                    passed.update(order[: order.index(block)])
                order.remove(block)
            else:
                queue.discard(block)
                order.remove(block)
            assert [*queue.ready()] == [one for one in order if one not in blocked]

    def test_a_blocked_one_is_first_again(self) -> None:
        """Passed over at the front, it is at the front once it is unblocked."""
        queue = BlockQueue(9)
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

    def test_one_that_goes_again_is_the_newest(self) -> None:
        ghosts: Ghosts[str] = Ghosts(2)
        for block, value in ((1, "first"), (2, "other"), (1, "second"), (3, "last")):
            ghosts.remember(block, value)
        assert [ghosts.peek(block) for block in (1, 2, 3)] == ["second", None, "last"]
