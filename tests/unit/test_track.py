"""Events of an engine, entered into the index under our own hashes."""

from array import array
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from warmroute.adapters.kv_events.wire import (
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
)
from warmroute.policies.kv.blocks import hash_tokens, root_hash
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.view.track import Track

SIZE = 4
Path = tuple[int, ...]


def root(lora: str | None = None, salt: str | None = None) -> int:
    return root_hash("m", lora=lora, salt=salt)


def tokens_of(path: Path) -> list[int]:
    """Return the tokens of a chain of blocks: each its number, SIZE times."""
    return [number for number in path for _ in range(SIZE)]


def key_of(path: Path) -> int:
    """Return what the engine calls the last block of a chain."""
    return xxh3_64_intdigest(array("I", path).tobytes(), 7)


def stored(path: Path, start: int = 0, **more: object) -> Stored:
    keys = [key_of(path[:end]) for end in range(start + 1, len(path) + 1)]
    parent = key_of(path[:start]) if start else None
    return Stored(list(keys), parent, tokens_of(path[start:]), SIZE, **more)  # type: ignore[arg-type]


def removed(*paths: Path, medium: str | None = "GPU") -> Removed:
    return Removed([key_of(path) for path in paths], medium)


class Rig:
    """An index with one backend and its track."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        tiers = {tier: self.index.add_holder("a", tier) for tier in ("gpu", "host")}
        tiers["disk"] = self.index.add_holder("a", "disk")
        self.track = Track(self.index, tiers, root, lambda size: None, lambda: None)
        self.stamp = 0.0

    def apply(self, *events: Event) -> None:
        self.stamp += 1
        self.track.apply(Batch(0.0, list(events), 0), self.stamp)
        self.index.check_integrity()

    def matched(self, path: Path, seed: int | None = None) -> tuple[int, int]:
        tokens = array("I", tokens_of(path))
        hashes = hash_tokens(tokens, SIZE, root() if seed is None else seed)
        match = self.index.match(hashes)
        assert match.host is not None
        return match.gpu[0], match.host[0]


class TestTrack:
    def test_stored_blocks_match_a_prompt_of_their_tokens(self) -> None:
        rig = Rig()
        rig.apply(stored((1, 2, 3)))
        assert rig.matched((1, 2, 3, 4)) == (3, 0)
        assert rig.matched((2, 3)) == (0, 0)
        assert rig.track.block_size == SIZE

    def test_a_salt_beside_the_blocks_separates_them(self) -> None:
        """As SGLang sends it, with every event of a salted prompt."""
        rig = Rig()
        rig.apply(stored((1, 2), cache_salt="s"))
        rig.apply(stored((1, 2, 3), 2, cache_salt="s"))
        assert rig.matched((1, 2, 3)) == (0, 0)
        assert rig.matched((1, 2, 3), root(salt="s")) == (3, 0)

    def test_removed_blocks_do_not(self) -> None:
        rig = Rig()
        rig.apply(stored((1, 2, 3)), removed((1, 2, 3)))
        assert rig.matched((1, 2, 3)) == (2, 0)

    def test_a_block_stored_twice_is_removed_twice(self) -> None:
        rig = Rig()
        rig.apply(stored((1, 2)), stored((1, 2), 1), removed((1, 2)))
        assert rig.matched((1, 2)) == (2, 0)
        rig.apply(removed((1, 2)))
        assert rig.matched((1, 2)) == (1, 0)

    def test_orphans_wait_for_their_parent(self) -> None:
        """They are never taken for the start of a prompt."""
        rig = Rig()
        rig.apply(stored((1, 2, 3), 2), stored((1, 2), 1))
        assert rig.matched((3,)) == rig.matched((2, 3)) == (0, 0)
        assert rig.track.num_orphans == 2
        rig.apply(stored((1,)))
        assert rig.matched((1, 2, 3)) == (3, 0)
        assert rig.track.num_orphans == 0

    def test_an_orphan_that_was_removed_does_not_come_back(self) -> None:
        rig = Rig()
        rig.apply(stored((1, 2, 3), 1), removed((1, 2, 3)))
        rig.apply(stored((1,)))
        assert rig.matched((1, 2, 3)) == (2, 0)

    def test_clear_forgets_blocks_and_orphans(self) -> None:
        rig = Rig()
        rig.apply(stored((1,)), stored((5, 6), 1), Cleared(), stored((5,)))
        assert rig.matched((1,)) == (0, 0)
        assert rig.matched((5, 6)) == (1, 0)

    def test_lower_tiers_count_beyond_the_gpu(self) -> None:
        """A block may be offloaded whose parent is on the GPU alone."""
        rig = Rig()
        rig.apply(stored((1, 2)), stored((1, 2, 3), 2, medium="CPU"))
        assert rig.matched((1, 2, 3)) == (2, 1)
        rig.apply(removed((1, 2)))
        assert rig.matched((1, 2, 3)) == (1, 0)

    def test_salt_and_lora_separate(self) -> None:
        rig = Rig()
        rig.apply(stored((1, 2), extra_keys=[["s"], None]))
        rig.apply(stored((3,), lora_name="l", lora_id=1, extra_keys=[["l"]]))
        assert rig.matched((1, 2)) == rig.matched((3,)) == (0, 0)
        assert rig.matched((1, 2), root(salt="s")) == (2, 0)
        assert rig.matched((3,), root(lora="l")) == (1, 0)

    @pytest.mark.parametrize("extra_keys", [None, [["l"], ["l"]]])
    def test_a_lora_that_has_a_number_alone_matches_nothing(
        self, extra_keys: list[list[str]] | None
    ) -> None:
        """It is not the base model, and nobody knows which one it is."""
        rig = Rig()
        rig.apply(stored((1, 2), lora_id=7, extra_keys=extra_keys))
        assert rig.track.num_skipped == 0
        for seed in (root(), root(lora="l"), root(lora="7"), root(salt="l")):
            assert rig.matched((1, 2), seed) == (0, 0)

    def test_a_salt_may_be_called_like_the_lora(self) -> None:
        rig = Rig()
        keys = [["l", "l"], ["l"]]
        rig.apply(stored((1, 2), lora_name="l", lora_id=1, extra_keys=keys))
        assert rig.matched((1, 2), root(lora="l")) == (0, 0)
        assert rig.matched((1, 2), root(lora="l", salt="l")) == (2, 0)

    def test_an_image_in_the_middle_separates_what_is_behind_it(self) -> None:
        rig = Rig()
        rig.apply(stored((1, 2, 3), extra_keys=[None, [["image", 0]], None]))
        assert rig.matched((1, 2, 3)) == (1, 0)

    @pytest.mark.parametrize(
        "event",
        [
            stored((1,), kv_cache_spec_kind="sliding_window"),
            stored((1,), kv_cache_spec_kind="mamba", group_idx=1),
            Stored([1], None, [-1, 2, 3, 4], SIZE),
            Stored([1], None, [2**40, 2, 3, 4], SIZE),
        ],
    )
    def test_what_cannot_be_used_is_skipped_alone(self, event: Event) -> None:
        rig = Rig()
        rig.apply(stored((7,)), event, stored((8,)))
        assert rig.matched((7,)) == rig.matched((8,)) == (1, 0)
        assert rig.track.num_skipped == 1

    @pytest.mark.parametrize("groups", [(0, None), (None, 0)])
    def test_an_event_without_a_group_is_of_every_group(
        self, groups: tuple[int | None, int | None]
    ) -> None:
        """Tiers and releases that know no groups may speak beside one that does."""
        rig = Rig()
        first, second = groups
        rig.apply(stored((1,), group_idx=first), stored((1, 2), 1, group_idx=second))
        assert rig.matched((1, 2, 3)) == (2, 0)
        rig.apply(stored((3,), group_idx=1))
        assert rig.matched((3, 4)) == (0, 0)
        gone = Removed([key_of((1, 2))], "GPU", second)
        rig.apply(Removed([key_of((1,))], "GPU", 1), gone)
        assert rig.matched((1, 2, 3)) == (1, 0)

    def test_what_was_stored_without_a_group_is_removed_with_any(self) -> None:
        rig = Rig()
        rig.apply(stored((1, 2)))
        rig.apply(Removed([key_of((1, 2))], "GPU", 3))
        assert rig.matched((1, 2, 3)) == (1, 0)

    def test_only_the_first_full_attention_group_counts(self) -> None:
        rig = Rig()
        rig.apply(stored((1,), group_idx=0), stored((1,), group_idx=1))
        rig.apply(Removed([key_of((1,))], "GPU", 1))
        assert rig.matched((1,)) == (1, 0)
        rig.apply(Removed([key_of((1,))], "GPU", 0))
        assert rig.matched((1,)) == (0, 0)

    def test_orphans_are_bounded(self) -> None:
        rig = Rig()
        for number in range(70):
            rig.apply(stored((1, *range(number * 1000, number * 1000 + 1000)), 1))
        assert rig.track.num_orphans <= 65_536
        assert rig.track.num_skipped == 5


paths = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
acts = st.lists(
    st.tuples(st.sampled_from(["store", "remove", "clear"]), paths), max_size=25
)


class NaiveEngine:
    """An engine that has a parent wherever it has a child, and tells everything."""

    def __init__(self) -> None:
        self.blocks: Counter[Path] = Counter()

    def act(self, verb: str, path: Path) -> Event | None:
        if verb == "clear":
            self.blocks.clear()
            return Cleared()
        if verb == "remove":
            has_child = any(
                len(one) > len(path) and one[: len(path)] == path for one in self.blocks
            )
            if not self.blocks[path] or has_child:
                return None
            self.blocks[path] -= 1
            self.blocks += Counter()
            return removed(path)
        start = self.leading(path)
        if start == len(path):
            start -= 1  # computes its last block again, and tells of it
        self.blocks.update(path[:end] for end in range(start + 1, len(path) + 1))
        return stored(path, start)

    def leading(self, path: Path) -> int:
        for length in range(len(path)):
            if not self.blocks[path[: length + 1]]:
                return length
        return len(path)


@given(acts, paths)
@settings(max_examples=200, deadline=None)
def test_whoever_hears_everything_knows_everything(
    steps: list[tuple[str, Path]], asked: Path
) -> None:
    rig, engine = Rig(), NaiveEngine()
    for verb, path in steps:
        if (event := engine.act(verb, path)) is not None:
            rig.apply(event)
    assert rig.matched(asked) == (engine.leading(asked), 0)


@given(acts, st.integers(0, 25), paths)
@settings(max_examples=200, deadline=None)
def test_whoever_comes_late_promises_nothing_that_is_not_there(
    steps: list[tuple[str, Path]], late: int, asked: Path
) -> None:
    rig, engine = Rig(), NaiveEngine()
    for number, (verb, path) in enumerate(steps):
        event = engine.act(verb, path)
        if event is not None and number >= late:
            rig.apply(event)
    assert rig.matched(asked)[0] <= engine.leading(asked)
