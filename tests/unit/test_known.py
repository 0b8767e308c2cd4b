"""The keys of announced blocks: found, parted and forgotten, in few small tables.

Keys of engines are hashes, so that those of the tests are scattered like them.
"""

import tracemalloc
from array import array
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmroute.policies.kv.known import Known
from warmroute.policies.kv.run import Run
from warmroute.policies.kv.tree import KEY_BYTES

FULL = 8
HOLDER = 0


def named(*numbers: int) -> "array[int]":
    """Return a key for each number, the same at each call."""
    return array("Q", [one * 0x9E3779B97F4A7C15 % 2**64 for one in numbers])


def run_of(keys: "array[int]") -> Run:
    """Return a run whose blocks *HOLDER* calls *keys*."""
    run = Run(Run(None, 0, array("Q"), 0), 0, array("Q", keys), 16)
    run.keys = {HOLDER: array("Q", keys)}
    return run


class KnownMachine(RuleBasedStateMachine):
    """Runs come, part, shrink and go; the model is one dict."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Known(FULL)
        self.runs: list[Run] = []
        self.model: dict[int, Run] = {}
        self.next_key = 1

    def keys(self, run: Run) -> "array[int]":
        assert run.keys is not None
        return run.keys[HOLDER]

    @rule(length=st.integers(1, 2 * FULL))
    def put(self, length):
        run = run_of(named(*range(self.next_key, self.next_key + length)))
        self.next_key += length
        self.known.put(self.keys(run), run)
        self.runs.append(run)
        self.model.update(dict.fromkeys(self.keys(run), run))

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), length=st.integers(1, 3))
    def grow(self, data, length):
        run = data.draw(st.sampled_from(self.runs))
        more = named(*range(self.next_key, self.next_key + length))
        self.next_key += length
        self.known.put(more, run)
        self.keys(run).extend(more)
        self.model.update(dict.fromkeys(more, run))

    @precondition(lambda self: any(len(self.keys(run)) > 1 for run in self.runs))
    @rule(data=st.data(), has_tail=st.booleans(), has_new_head=st.booleans())
    def part(self, data, has_tail, has_new_head):
        long = [run for run in self.runs if len(self.keys(run)) > 1]
        run = data.draw(st.sampled_from(long))
        keys = self.keys(run)
        at = data.draw(st.integers(1, len(keys) - 1)) if has_tail else len(keys)
        head, rest = run_of(keys[:at]), keys[at:]
        if not has_new_head:
            head.mark, run.mark = run.mark, head.mark
        self.known.part(head, self.keys(head), run, rest if has_tail else None)
        self.runs.append(head)
        self.model.update(dict.fromkeys(self.keys(head), head))
        if has_tail:
            run.keys = {HOLDER: rest}
        else:
            self.runs.remove(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def forget(self, data):
        run = data.draw(st.sampled_from(self.runs))
        keys = self.keys(run)
        keep = data.draw(st.integers(0, len(keys) - 1))
        gone = keys[keep:]
        del keys[keep:]
        self.known.forget(gone, run)
        if not keep:
            self.known.close(run)
            self.runs.remove(run)
        for key in gone:
            del self.model[key]

    @rule(number=st.integers(0, 10_000))
    def look_for_what_was_never_there(self, number):
        assert self.known.get(named(-number)[0]) is None

    @rule()
    def take_any(self):
        run = self.known.any_run()
        assert run in self.runs if self.runs else run is None

    @invariant()
    def finds_what_the_model_finds(self):
        assert len(self.known) == len(self.model)
        assert self.known.copy() == self.model
        assert set(self.known.runs()) == set(self.runs)

    @precondition(lambda self: self.next_key > 1)
    @rule(data=st.data())
    def finds_one_that_came_once(self, data):
        key = named(data.draw(st.integers(1, self.next_key - 1)))[0]
        assert self.known.get(key) is self.model.get(key)

    def teardown(self):
        for key in named(*range(self.next_key)):
            assert self.known.get(key) is self.model.get(key)


KnownMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestKnownAgainstModel = KnownMachine.TestCase


def shown(known: Known) -> list[int]:
    """Return what a `repr` tells: keys, and tables."""
    return [int(one.strip(",]>")) for one in repr(known).split() if one[0].isdigit()]


@pytest.mark.parametrize("length", [1, 8])
@pytest.mark.parametrize("stays", ["none", "a few"])
@pytest.mark.parametrize("order", ["oldest", "newest", "any"])
def test_tables_stay_few_whatever_goes(length: int, stays: str, order: str) -> None:
    """Of each at least half is left, but for some that are about to go."""
    known, draw = Known(64), Random(1)
    runs: list[Run] = []
    kept: list[Run] = []
    for number in range(400 * 20):
        run = run_of(named(*range(number * length + 1, (number + 1) * length + 1)))
        known.put(run.keys[HOLDER], run)
        is_kept = stays == "a few" and number < 400 and number % 20 == 0
        (kept if is_kept else runs).append(run)
        if len(runs) > 400:
            at = {"oldest": 0, "newest": -2, "any": draw.randrange(len(runs))}[order]
            run = runs.pop(at)
            known.forget(run.keys[HOLDER], run)
            known.close(run)
        assert shown(known)[1] <= 2 * len(known) // 64 + 3

    here = {key for run in runs + kept for key in run.keys[HOLDER]}
    assert known.copy().keys() == here


def test_tables_go_whose_last_keys_go_with_others() -> None:
    """Of a chat that has grown for long, each part lies in another table."""
    known = Known(FULL)
    stays = run_of(named(0))
    known.put(stays.keys[HOLDER], stays)
    for first in range(1, 10_001, 100):
        runs = [run_of(named(at)) for at in range(first, first + 10)]
        for run in runs:
            known.put(run.keys[HOLDER], run)
        for turn in range(10, 100, 10):
            for at, run in enumerate(runs, first):
                more = named(turn + at)
                known.put(more, run)
                run.keys[HOLDER].extend(more)
        for run in runs:
            known.forget(run.keys[HOLDER], run)
            known.close(run)

    assert known.copy() == {named(0)[0]: stays}
    assert shown(known)[1] <= 2


def test_no_table_is_large() -> None:
    """One that grows is copied as a whole, and nobody waits for more than that."""
    known = Known()
    for first in range(0, 100_000, 1_000):
        run = run_of(named(*range(first, first + 1_000)))
        known.put(run.keys[HOLDER], run)
    assert shown(known) == [100_000, 5]


def test_emptying_frees_the_tables() -> None:
    """Who forgets any run until there is none has no table left."""
    known = Known(FULL)
    for first in range(1, 100, 4):
        run = run_of(named(*range(first, first + 4)))
        known.put(run.keys[HOLDER], run)
    while any_run := known.any_run():
        known.forget(any_run.keys[HOLDER], any_run)
        known.close(any_run)
    assert repr(known) == "<Known [Keys: 0, tables: 0]>"
    assert known.get(1) is None


def test_tables_of_which_the_newest_keys_went_first_are_no_larger() -> None:
    """What comes and goes at once leaves no room behind that nobody counts."""
    runs = [run_of(named(*range(at, at + 64))) for at in range(0, 64 * 900, 64)]
    known = Known(1_365)
    tracemalloc.start()
    try:
        for at, run in enumerate(runs):
            known.put(run.keys[HOLDER], run)
            if at % 3 == 2:
                for gone in runs[at - 1 : at + 1]:
                    known.forget(gone.keys[HOLDER], gone)
                    known.close(gone)
        for run in runs[::9]:
            known.forget(run.keys[HOLDER], run)
            known.close(run)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert shown(known) == [64 * 200, 16]
    assert grown <= KEY_BYTES * len(known)


def test_two_blocks_with_one_key_leave_nothing_behind() -> None:
    """An engine that names blocks alike gets an answer, and no key stays for ever."""
    for order in ((0, 1), (1, 0)):
        known = Known(4)
        runs = [run_of(array("Q", keys)) for keys in ([7, 1, 2], [7, 3, 4], [5, 5])]
        for run in runs:
            known.put(run.keys[HOLDER], run)
        assert known.get(7) in runs[:2]
        for at in (*order, 2):
            known.forget(runs[at].keys[HOLDER], runs[at])
            known.close(runs[at])

        assert len(known) == 0
        assert [known.get(key) for key in range(8)] == [None] * 8


def test_of_two_blocks_with_one_key_the_other_one_is_still_found() -> None:
    known = Known(2)
    first, second = run_of(array("Q", [7, 1])), run_of(array("Q", [7, 2]))
    for run in (first, second):
        known.put(run.keys[HOLDER], run)
    known.forget(first.keys[HOLDER], first)
    assert known.get(7) is second


def test_a_key_is_found_whatever_the_bytes_of_its_neighbours_look_like() -> None:
    """Those of the second and third key hold the fourth one between them."""
    run = run_of(array("Q", [7, 256, 512, 1, 5]))
    places = [run.position(HOLDER, key) for key in run.keys[HOLDER]]
    assert places == [0, 1, 2, 3, 4]
