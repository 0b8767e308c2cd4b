"""Deadlines of many blocks: which is due, and no call that takes long."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.kv.deadlines import Deadlines


def test_what_is_due_together_goes_from_the_tail() -> None:
    deadlines = Deadlines()
    for depth, block in enumerate((7, 8, 9)):
        deadlines.put(block, 5.0, depth)
    assert deadlines.next_due == 5.0
    assert [*deadlines.due(4.9)] == []
    assert [*deadlines.due(5.0)] == [9, 8, 7]
    assert deadlines.next_due is None


def test_no_call_tidies_many_entries_and_few_stale_ones_are_left() -> None:
    deadlines = Deadlines()
    for block in range(4_000):
        deadlines.put(block, 1_000.0 - block % 10, 0)
    for block in range(4_000):
        before = deadlines.num_entries
        deadlines.pop(block)
        assert before - deadlines.num_entries <= 2 * 512
        assert deadlines.num_entries <= 4 * len(deadlines) + 512
        if block % 100 == 0:
            deadlines.check_integrity()
    assert deadlines.num_entries <= 64
    assert repr(deadlines) == "<Deadlines [Blocks: 0]>"


def test_one_that_is_put_off_again_and_again_leaves_little() -> None:
    deadlines = Deadlines()
    for turn in range(10_000):
        deadlines.put(turn % 100, float(turn), 0)
        assert deadlines.num_entries <= 3 * 100 + 64
    assert [*deadlines.due(9_899.5)] == []
    assert [*deadlines.due(9_900.0)] == [0]


def test_no_call_passes_over_many_that_were_put_off() -> None:
    deadlines = Deadlines()
    for deadline in (10.0, 60.0):
        for block in range(1_000):
            deadlines.put(block, deadline, 0)
    before = deadlines.num_entries
    assert [*deadlines.due(10.0)] == []
    assert before - deadlines.num_entries <= 2 * 512
    assert deadlines.next_due == 60.0
    assert len([*deadlines.due(60.0, at_most=100)]) == 100
    assert deadlines.next_due == 60.0  # more of it is left for the next call
    assert len([*deadlines.due(60.0)]) == 900


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "pop", "due"]),
            st.integers(0, 5),
            st.integers(0, 20),
        ),
        min_size=100,
        max_size=400,
    )
)
def test_agrees_with_a_dict(steps: list[tuple[str, int, int]]) -> None:
    deadlines, model, now = Deadlines(), dict[int, float](), 0.0
    for verb, block, amount in steps:
        if verb == "put":
            deadlines.put(block, now + amount, 0)
            model[block] = now + amount
        elif verb == "pop":
            assert deadlines.pop(block) == model.pop(block, None)
        else:
            now += 0.1 * amount
            found = next(deadlines.due(now), None)
            expected = min(model.values(), default=now + 1)
            assert (found is None) == (expected > now)
            if found is not None:
                assert model.pop(found) == expected
        assert len(deadlines) == len(model)
        assert {one: deadlines.get(one) for one in model} == model
        deadlines.check_integrity()
