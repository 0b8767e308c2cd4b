"""A table that is spread over small ones."""

from array import array

from warmroute.policies.kv.shards import Shards, dismantle


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
    for left in reversed(range(256)):
        next(freed)
        assert len(table.tables) == left
    assert [*freed] == []
    numbers = array("Q", range(100_000))
    assert next(dismantle(numbers)) is None
    assert len(numbers) == 100_000 - 32_768
    assert len([*dismantle([numbers, {1: table}, object(), None])]) == 3
