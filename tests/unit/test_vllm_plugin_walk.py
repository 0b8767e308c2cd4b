"""A snapshot in slices: exact for one moment, whatever the engine does meanwhile."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from unit.fake_clock import FakeClock
from unit.fake_vllm_host import FakeChunks, FakeManager
from unit.fake_vllm_pool import FakePool, FakeRequest

from warmroute.adapters.kv_plugin.jobs import SLICE_S, Jobs
from warmroute.adapters.vllm.plugin import walk as walking
from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.host import HostTier
from warmroute.adapters.vllm.plugin.installation import watched
from warmroute.adapters.vllm.plugin.verbs import Verbs
from warmroute.adapters.vllm.plugin.walk import Found

SIZE = 2
LIMIT_S = 0.005
LOOK_S = 8e-6
"""What a look at one block takes here; in truth it is less."""


class Rig:
    """A pool and a host that the plugin watches."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = FakePool(num_blocks, SIZE)
        self.manager = FakeManager()
        self.contents = Contents(self.pool, SIZE, lambda *_: None)
        self.contents.host = HostTier(self.manager, lambda one: ("removed", one))
        cache = self.pool.cache_full_blocks
        self.pool.cache_full_blocks = watched(cache, self.contents)

    def now(self) -> dict[bytes, tuple[object, ...]]:
        """Say what is where, at once."""
        notes, host = self.contents._notes, cast(HostTier, self.contents.host)
        told = {}
        for one in notes.hashes(range(notes.num_places)):
            content = notes.get(one)
            where = bool(self.contents.pages_of(one)), host.has(one)
            if content is not None and any(where):
                tokens = list(content.tokens)
                told[one] = (content.parent, content.depth, tokens, *where)
        return told

    def walk(self) -> Iterator[list[Found]]:
        with self.contents.walk() as walk:
            yield []  # begun
            yield from walk.go()
        yield from walk.taken_down()
        for _ in self.contents.finish(walk):
            yield []


def prompt(first: int, blocks: int) -> FakeRequest:
    return FakeRequest([first * 100 + at for at in range(blocks * SIZE)], SIZE)


def told(found: list[Found]) -> dict[bytes, tuple[object, ...]]:
    rows = {}
    for block_hash, content, refs, is_on_host in found:
        if refs is not None or is_on_host:
            assert block_hash not in rows, "a block is told of twice"
            tokens = list(content.tokens)
            rows[block_hash] = (
                content.parent,
                content.depth,
                tokens,
                refs is not None,
                is_on_host,
            )
    return rows


class WalkMachine(RuleBasedStateMachine):
    """Walks begun at any moment find what was there then, and each block once."""

    places: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(walking, "AT_ONCE", self.places)
        self.rig = Rig(14)
        self.running: list[FakeRequest] = []
        self.walks: list[tuple[Iterator[list[Found]], Any, list[Found]]] = []

    @rule(first=st.integers(0, 5), blocks=st.integers(1, 5))
    def send(self, first: int, blocks: int) -> None:
        if self.rig.pool.get_num_free_blocks() >= blocks:
            request = prompt(first, blocks)
            self.rig.pool.run(request)
            self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.running) - 1))
        self.rig.pool.finish(self.running.pop(at))

    @rule(data=st.data())
    def copy_a_page(self, data: st.DataObject) -> None:
        pool = self.rig.pool
        cached = sorted(pool.cached_block_hash_to_block._cache)
        if cached and pool.get_num_free_blocks():
            page = pool.get_new_blocks(1)[0]
            pool.put(data.draw(st.sampled_from(cached))[:-4], page)
            pool.free_blocks([page])

    @rule()
    def reset(self) -> None:
        for request in self.running:
            self.rig.pool.finish(request)
        self.running = []
        assert self.rig.pool.reset_prefix_cache()

    @rule(first=st.integers(0, 5), depth=st.integers(0, 4), is_ready=st.booleans())
    def store(self, first: int, depth: int, is_ready: bool) -> None:
        block_hash = prompt(first, 5).block_hashes[depth]
        manager = self.rig.manager
        if block_hash + bytes(4) not in manager.chunks:
            manager.put(block_hash, -1)
        if is_ready:
            manager.complete_store([block_hash + bytes(4)], None)

    @rule(count=st.integers(1, 4))
    def make_room_on_the_host(self, count: int) -> None:
        self.rig.manager._policy.evict(count, set())

    @rule(first=st.integers(0, 5), depth=st.integers(0, 4))
    def drop_on_the_host(self, first: int, depth: int) -> None:
        block_hash = prompt(first, 5).block_hashes[depth]
        cast(HostTier, self.rig.contents.host).drop(block_hash + bytes(4))

    @precondition(lambda self: len(self.walks) < 3)
    @rule()
    def begin(self) -> None:
        expected, walk = self.rig.now(), self.rig.walk()
        next(walk)
        self.walks.append((walk, expected, []))

    @precondition(lambda self: self.walks)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.walks) - 1))
        walk, expected, found = self.walks[at]
        some = next(walk, None)
        if some is not None:
            found += some
            return
        assert told(found) == expected
        del self.walks[at]

    @precondition(lambda self: self.walks)
    @rule()
    def leave_off(self) -> None:
        self.walks.pop()[0].close()

    def teardown(self) -> None:
        for walk, expected, found in self.walks:
            for some in walk:
                found += some
            assert told(found) == expected
        self.patch.undo()
        cache = self.rig.pool.cached_block_hash_to_block
        assert set(vars(cache)) == {"_cache"}, "nobody is told any more"
        assert "complete_store" not in vars(self.rig.manager)


TestWalkMachine = WalkMachine.TestCase
TestWalkMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None
)


class SlowCache(dict[bytes, object]):
    """A map that takes time for each look, and lets nobody read it in one piece."""

    def __init__(self, known: dict[bytes, object], clock: FakeClock) -> None:
        super().__init__(known)
        self._clock = clock

    def get(self, block_hash: bytes, default: object = None) -> object:
        self._clock.now += LOOK_S
        return super().get(block_hash, default)

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("the map is read in one piece")

    keys = values = items = copy = __iter__  # type: ignore[assignment]


class Engine:
    """The verbs on a pool that is full of cached blocks, by a clock of its own."""

    def __init__(self, num_chains: int, length: int) -> None:
        self.rig = rig = Rig(num_chains * length + 1)
        self.clock = FakeClock()
        for number in range(num_chains):
            pages = rig.pool.blocks[number * length + 1 : (number + 1) * length + 1]
            request = prompt(number * 1_000_000, length)
            rig.pool.cache_full_blocks(request, pages, 0, length, SIZE, 0)
        cache = rig.pool.cached_block_hash_to_block
        cache._cache = SlowCache(cache._cache, self.clock)
        announcer: Any = SimpleNamespace(announce=lambda: len(rig.pool.events))
        verbs: Any = cast(Any, Verbs)(
            rig.pool, rig.contents, announcer, *[None] * 3, {}
        )
        self.verbs = verbs
        self.jobs = Jobs(lambda: None, self.clock)

    def perform(self, verb: str, **arguments: object) -> list[dict[str, Any]]:
        """Perform a verb; no call may take longer than it may."""
        job, parts, begun = getattr(self.verbs, verb)(arguments), [], self.clock.now
        answer = cast(dict[str, Any], self.jobs.begin(1, job))
        while True:
            assert self.clock.now - begun < LIMIT_S, "a call held up the engine"
            assert "error" not in answer, answer
            parts += answer["parts"]
            if answer["done"]:
                return parts
            begun = self.clock.now
            answer = cast(dict[str, Any], self.jobs.go_on(1))


class TestSlices:
    def test_no_call_of_a_snapshot_is_long_however_large_the_pool(self) -> None:
        engine = Engine(20, 1_000)
        head, *parts = engine.perform("snapshot", token_ids=True)
        assert head["seq"] == len(engine.rig.pool.events)
        rows = [row for part in parts for row in part.get("rows", ())]
        assert len({row[0] for row in rows}) == len(rows) == 20_000
        assert max(len(part["rows"]) for part in parts) * LOOK_S < SLICE_S

    def test_nor_one_behind_a_reset(self) -> None:
        engine = Engine(4, 1_000)
        job = engine.verbs.snapshot({})
        next(job)
        engine.rig.pool.reset_prefix_cache()
        parts = engine.jobs.begin(1, job)
        rows = [row for part in parts["parts"] for row in part.get("rows", ())]  # type: ignore[attr-defined]
        while not parts["done"]:
            parts = engine.jobs.go_on(1)
            rows += [row for part in parts["parts"] for row in part.get("rows", ())]  # type: ignore[attr-defined]
        assert len(rows) == 4_000
        assert {row[3] for row in rows} == {0}

    def test_no_call_of_a_flush_is_long(self) -> None:
        engine = Engine(3, 1_000)
        parts = engine.perform("flush")
        assert sum(part.get("dropped", 0) for part in parts) == 3_000
        assert parts[-1]["empty"]


@pytest.fixture
def rig() -> Rig:
    rig = Rig(8)
    request = prompt(1, 3)
    rig.pool.run(request)
    rig.pool.finish(request)
    return rig


def rest(walk: Iterator[list[Found]]) -> list[Found]:
    return [one for some in walk for one in some]


def test_what_the_host_gets_meanwhile_is_not_found(rig: Rig) -> None:
    first = prompt(1, 3).block_hashes[0]
    rig.manager.put(first, -1)
    walk = rig.walk()
    next(walk)
    rig.manager.complete_store([first + bytes(4)], None)
    assert not any(one.is_on_host for one in rest(walk))
    assert any(one.is_on_host for one in rest(rig.walk()))


def test_what_the_host_drops_meanwhile_is_found(rig: Rig) -> None:
    first, second, _ = prompt(1, 3).block_hashes
    rig.manager.put(first)
    rig.manager.put(second)
    walk = rig.walk()
    next(walk)
    host = cast(HostTier, rig.contents.host)
    assert host.drop(second + bytes(4))
    rig.manager._policy.evict(1, set())
    assert sum(one.is_on_host for one in rest(walk)) == 2
    assert not any(one.is_on_host for one in rest(rig.walk()))


def test_references_to_what_is_on_a_page_now_are_not_counted(rig: Rig) -> None:
    walk = rig.walk()
    next(walk)
    rig.pool.reset_prefix_cache()
    rig.pool.run(prompt(2, 7))
    assert [one.refs for one in rest(walk)] == [0, 0, 0]
    assert [one.refs for one in rest(rig.walk())].count(1) == 7


def test_what_fails_ends_the_walk_and_not_the_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> Found:
        raise ValueError("broken")

    walk = rig.walk()
    next(walk)
    with monkeypatch.context() as patch:
        patch.setattr(walking.Walk, "_find", broken)
        assert rig.pool.run(prompt(2, 7)) == 0
    assert "a snapshot has missed a change" in caplog.text
    with pytest.raises(RuntimeError, match="missed"):
        rest(walk)
    assert rig.contents._walks._open == []
    assert len(rest(rig.walk())) == 7


def test_a_walk_that_is_left_off_is_told_no_more(rig: Rig) -> None:
    walk = rig.walk()
    next(walk)
    cache = rig.pool.cached_block_hash_to_block
    assert repr(rig.contents._walks) == "<Walks [Open: 1]>"
    assert {"insert", "pop"} < set(vars(cache))
    walk.close()
    assert repr(rig.contents._walks) == "<Walks [Open: 0]>"
    assert set(vars(cache)) == {"_cache"}


class SlottedChunks(FakeChunks):
    """Those of another's policy, on which nothing can be put."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "evict":
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_host_that_cannot_tell_leaves_everything_as_it_was(rig: Rig) -> None:
    rig.manager._policy = SlottedChunks()
    for _ in range(2):
        with pytest.raises(AttributeError, match="evict"):
            next(rig.walk())
        assert set(vars(rig.pool.cached_block_hash_to_block)) == {"_cache"}
        assert "complete_store" not in vars(rig.manager)
        assert rig.contents._walks._open == []
