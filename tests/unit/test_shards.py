"""A table that is spread over small ones."""

from array import array
from itertools import pairwise

from warmroute.policies.eviction.base import BlockFacts
from warmroute.policies.eviction.lfu import Lfu
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.kv.shards import LAST, Shards, dismantle


def test_a_table_is_what_a_dict_is() -> None:
    table: Shards[bytes, int] = Shards()
    keys = [bytes([at % 7, at % 251, at % 13]) for at in range(1_000)]
    plain: dict[bytes, int] = {}
    for at, key in enumerate(keys):
        table.of(key)[key] = plain[key] = at
    for key in keys[::3]:
        assert table.of(key).pop(key, None) == plain.pop(key, None)
    assert len(table) == len(plain)
    assert {key: value for one in table for key, value in one.items()} == plain
    assert all((key in table) == (key in plain) for key in keys)
    assert repr(table) == f"<Shards [Keys: {len(plain)}]>"


def test_no_shard_has_much_to_move_when_it_grows() -> None:
    """Hashes are even, and so are numbers that count up."""
    table: Shards[int, None] = Shards()
    for key in range(100_000):
        table.of(key)[key] = None
    assert max(map(len, table)) < 100_000 / 200


def test_what_nobody_needs_is_freed_a_table_at_a_time() -> None:
    table: Shards[int, int] = Shards()
    for key in range(1_000):
        table.of(key)[key] = key
    freed = dismantle(table)
    for left in reversed(range(LAST + 1)):
        next(freed)
        assert len(table.tables) == left
    assert [*freed] == []
    numbers = array("Q", range(100_000))
    assert next(dismantle(numbers)) is None
    assert len(numbers) == 100_000 - 32_768
    assert len([*dismantle([numbers, {1: table}, object(), None])]) == 5


def test_what_a_policy_of_others_derives_from_is_taken_apart_too() -> None:
    """Their own class may have something that others need."""

    class Derived(Lru):
        __slots__ = ("shared",)

    policy = Derived(capacity=9, clock=float)
    policy.shared = Shards[int, int]()
    policy.inserted(1, BlockFacts(0))
    assert sum(1 for _ in dismantle(policy)) >= LAST + 1
    assert policy._facts.tables == []
    assert len(policy.shared.tables) == LAST + 1


def test_a_policy_that_is_full_is_freed_in_pieces() -> None:
    """Entries of its heap go a piece at a time, and none is left to the end."""
    policy = Lfu(capacity=9_000, clock=float)
    for block in range(9_000):
        policy.inserted(block, BlockFacts(0))
    pieces = [*policy._heap._pieces.values()]
    left = [sum(len(piece.entries) for piece in pieces)]
    left += [sum(len(piece.entries) for piece in pieces) for _ in dismantle(policy)]
    assert max(before - after for before, after in pairwise(left)) <= 1_024
    assert left[-1] == 0
