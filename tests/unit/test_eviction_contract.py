"""Every block eviction policy against one contract, whatever is done to it."""

import gc
from array import array
from collections import OrderedDict
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from unit.eviction_rig import POLICIES, FakeClock, SingleBlockCache, facts

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.base import BlockEviction, Remembering
from warmroute.policies.kv.shards import Shards, dismantle

CAPACITY = 5
BLOCKS = 10
MANY = 20_000
GONE_THROUGH = dict | set | list | tuple | OrderedDict

blocks = st.integers(0, BLOCKS - 1)


def all_but(*names: str) -> pytest.MarkDecorator:
    chosen = [one for one in POLICIES if one.name not in names]
    return pytest.mark.parametrize("policy", chosen, ids=lambda one: one.name)


each_policy = all_but()


class EvictionMachine(RuleBasedStateMachine):
    """The model: sets of resident, held and demoted blocks."""

    policy_type: type[BlockEviction]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.policy = self.policy_type(capacity=CAPACITY, clock=self.clock)
        self.twin = self.policy_type(capacity=CAPACITY, clock=self.clock)
        self.resident: set[int] = set()
        self.held: set[int] = set()
        self.demoted: list[int] = []

    def tell(self, verb: str, *arguments: object) -> None:
        for one in (self.policy, self.twin):
            getattr(one, verb)(*arguments)

    @rule(block=blocks, seconds=st.floats(0.0, 100.0))
    def use(self, block: int, seconds: float) -> None:
        self.clock.now_s += seconds
        if block in self.resident:
            self.tell("touched", block)
            self.demoted = [one for one in self.demoted if one != block]
            return
        if len(self.resident) >= CAPACITY:
            self.evict(1)
        if len(self.resident) < CAPACITY:
            self.tell("inserted", block, facts(block))
            self.resident.add(block)

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.resident)))
        self.tell("held", block)
        self.held.add(block)

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.resident)))
        self.tell("freed", block)
        if block in self.held and block in self.demoted:
            self.demoted.remove(block)
            self.demoted.append(block)
        self.held.discard(block)

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.resident)))
        self.tell("removed", block)
        self.forget([block])

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def demote(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.resident)))
        self.tell("demoted", block)
        self.demoted = [*(one for one in self.demoted if one != block), block]

    @rule(number=st.integers(0, CAPACITY + 2))
    def evict(self, number: int) -> None:
        victims = self.policy.evict(number)
        assert self.twin.evict(number) == victims, "the same history, other victims"
        assert len(victims) == len(set(victims))
        assert len(victims) == min(number, len(self.resident - self.held))
        assert self.resident - self.held >= set(victims)
        doomed = [one for one in reversed(self.demoted) if one not in self.held]
        assert victims[: len(doomed)] == doomed[: len(victims)]
        self.forget(victims)

    @invariant()
    def residents_are_known(self) -> None:
        listed = self.policy.resident()
        assert len(self.policy) == len(listed) == len(self.resident)
        assert set(listed) == self.resident
        assert set(listed[len(listed) - len(self.held) :]) == self.held
        self.policy.check_integrity()  # type: ignore[attr-defined]

    def forget(self, gone: list[int]) -> None:
        self.resident.difference_update(gone)
        self.held.difference_update(gone)
        self.demoted = [one for one in self.demoted if one not in gone]


@each_policy
def test_contract_holds(policy: type[BlockEviction]) -> None:
    """Victims are unheld, distinct, enough and reproducible; demoted ones lead."""
    machine = type("Machine", (EvictionMachine,), {"policy_type": policy})
    machine.TestCase.settings = settings(
        max_examples=12, stateful_step_count=60, deadline=None
    )
    test = machine.TestCase()
    test.runTest()


@each_policy
def test_forgets_what_is_gone(policy: type[BlockEviction]) -> None:
    """A long run of new blocks leaves no more behind than a bounded history."""
    cache = SingleBlockCache(policy, 8)
    early = peak_objects(cache, 800)
    assert peak_objects(cache, 1600) <= early * 1.1


@each_policy
def test_no_table_of_many_blocks_is_one_piece(policy: type[BlockEviction]) -> None:
    """What grows by moving all that it has is an eighth of the blocks at most."""
    one = policy(capacity=MANY, clock=FakeClock())
    come_and_go(one, MANY)
    pieces = [seen for seen in containers(one, set()) if not isinstance(seen, array)]
    assert sum(map(len, pieces)) > MANY, "the tables were not found"
    assert max(map(len, pieces)) <= MANY // 8


@each_policy
def test_the_garbage_collector_has_little_to_go_through(
    policy: type[BlockEviction],
) -> None:
    """No object for each block, nor a list or an ordered table of all of them."""
    one = policy(capacity=MANY, clock=FakeClock())
    gc.collect()
    known = {id(seen) for seen in gc.get_objects()}
    known.add(id(known))
    come_and_go(one, MANY)
    gc.collect()  # makes it look past what holds no container
    new = [seen for seen in gc.get_objects() if id(seen) not in known]
    entries = [len(seen) for seen in new if isinstance(seen, GONE_THROUGH)]
    assert len(new) + sum(entries) <= MANY // 4


@each_policy
def test_is_freed_in_pieces(policy: type[BlockEviction]) -> None:
    """What is gone is forgotten some at a time, and then each table goes alone."""
    one = policy(capacity=1_000, clock=FakeClock())
    come_and_go(one, 1_000)
    one.evict(1_000)
    left = num_objects(one)
    while isinstance(one, Remembering) and one.forget_gone(8):
        assert left - num_objects(one) <= 8 * 16
        left = num_objects(one)
    assert sum(1 for _ in dismantle(one)) >= 64
    assert not any(len(shards.tables) for shards in all_shards(one, set()))


@each_policy
def test_misuse_is_an_error(policy: type[BlockEviction]) -> None:
    """Unknown blocks are a KeyError, a block twice and no room a PolicyError."""
    one = policy(capacity=2, clock=FakeClock())
    for verb in ("touched", "held", "freed", "removed", "demoted"):
        with pytest.raises(KeyError):
            getattr(one, verb)(5)
    one.inserted(5, facts(5))
    with pytest.raises(PolicyError, match="block 0x5 was inserted twice"):
        one.inserted(5, facts(5))
    with pytest.raises(PolicyError, match="a capacity of 0 blocks"):
        policy(capacity=0, clock=FakeClock())


@all_but("fifo", "s3fifo")
def test_tail_of_a_chain_goes_first(policy: type[BlockEviction]) -> None:
    """A chain freed tail first loses no block before its child, but to arrival."""
    one = policy(capacity=8, clock=FakeClock())
    for block in range(8):
        one.inserted(block, facts(block))
        one.held(block)
    for block in reversed(range(8)):
        one.freed(block)
    assert one.evict(8) == list(reversed(range(8)))


@all_but("adaptive", "arc", "s3fifo")
def test_residents_come_in_the_order_of_eviction(policy: type[BlockEviction]) -> None:
    """What `resident` lists is what `evict` takes, where one order can say it."""
    cache = SingleBlockCache(policy, 16)
    for step in range(200):
        cache.use(step * step % 48)
    listed = cache.policy.resident()
    assert cache.policy.evict(16) == listed


def come_and_go(policy: BlockEviction, num_blocks: int) -> None:
    """Have blocks come in, be used, held, and freed, and half of them replaced."""
    for block in range(num_blocks):
        policy.inserted(block, facts(block))
        policy.touched(block)
        policy.held(block)
    for block in range(num_blocks):
        policy.freed(block)
    policy.evict(num_blocks // 2)
    for block in range(num_blocks, num_blocks + num_blocks // 2):
        policy.inserted(block, facts(block))


def peak_objects(cache: SingleBlockCache, num_blocks: int) -> int:
    """Use new blocks, and return the most entries that were there on the way."""
    peak = 0
    for _ in range(num_blocks):
        cache.use(len(cache.cached) + len(cache.victims))
        if len(cache.victims) % 16 == 0:
            peak = max(peak, num_objects(cache.policy))
    return peak


def num_objects(policy: BlockEviction) -> int:
    """Count the entries of all containers that hang on *policy*."""
    return sum(len(one) for one in containers(policy, set()))


def containers(root: object, seen: set[int]) -> Iterator[object]:
    if id(root) in seen:
        return
    seen.add(id(root))
    if isinstance(root, dict | set | list | tuple | array):
        yield root
        if isinstance(root, array):
            return
        children = [*root.values()] if isinstance(root, dict) else [*root]
    else:
        slots = [slot for base in type(root).__mro__ for slot in slots_of(base)]
        children = [getattr(root, slot, None) for slot in slots]
    for child in children:
        yield from containers(child, seen)


def all_shards(root: object, seen: set[int]) -> Iterator[Shards[int, object]]:
    if id(root) in seen:
        return
    seen.add(id(root))
    if isinstance(root, Shards):
        yield root
    elif isinstance(root, list | tuple):
        for child in root:
            yield from all_shards(child, seen)
    for base in type(root).__mro__:
        for slot in slots_of(base):
            yield from all_shards(getattr(root, slot, None), seen)


def slots_of(base: type) -> tuple[str, ...]:
    return tuple(getattr(base, "__slots__", ()))
