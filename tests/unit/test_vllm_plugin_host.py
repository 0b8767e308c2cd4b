"""The plugin's side of vLLM's host tier, on fakes of its manager and its pool."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.fake_vllm_host import FakeManager
from unit.fake_vllm_pool import FakePool, FakeRequest, chain, key

from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.followers import Followers
from warmroute.adapters.vllm.plugin.host import HostTier, host_tier
from warmroute.adapters.vllm.plugin.installation import watched
from warmroute.adapters.vllm.plugin.naming import BlockNaming
from warmroute.adapters.vllm.plugin.restoring import Chain, Restoring

SIZE = 2
TOKENS = list(range(100, 108))


class Rig:
    def __init__(self) -> None:
        self.pool = FakePool(7, SIZE)
        self.manager = FakeManager()
        self.host = HostTier(self.manager, lambda one: ("removed", one))
        self.contents = Contents(self.pool, SIZE, extra_keys)
        self.contents.host = self.host
        cache = self.pool.cache_full_blocks
        self.pool.cache_full_blocks = watched(cache, self.contents)
        naming = BlockNaming(SIZE, hash_block)
        self.restoring = Restoring(self.contents, self.host, naming, 100)

    def send(self, tokens: list[int], salt: str | None = None) -> list[int]:
        request = FakeRequest(tokens, SIZE, salt)
        self.pool.run(request)
        self.pool.finish(request)
        return [key(one) for one in request.block_hashes]

    def wash(self) -> None:
        """Give every page to others."""
        self.send(list(range(900, 912)))


def extra_keys(request: FakeRequest, start: int, end: int) -> list[object] | None:
    return [request.cache_salt] if request.cache_salt and not start else None


def hash_block(parent: bytes | None, tokens: list[int], extra: object) -> bytes:
    salt = extra[0][1] if extra else None  # type: ignore[index]
    before = hash(salt) & 0xFFFF if parent is None else int.from_bytes(parent, "big")
    return bytes(24) + (hash((before, *tokens)) & (2**64 - 1)).to_bytes(8, "big")


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestHostTier:
    @pytest.mark.parametrize(
        ("ref_cnt", "is_there"), [(-1, False), (0, True), (1, True)]
    )
    def test_has_what_can_be_read(self, rig: Rig, ref_cnt: int, is_there: bool) -> None:
        rig.manager.put(b"h" * 32, ref_cnt)
        assert rig.host.has(b"h" * 32 + bytes(4)) is is_there
        assert not rig.host.has(b"i" * 36)

    @pytest.mark.parametrize(
        ("ref_cnt", "is_dropped"), [(-1, False), (0, True), (1, False)]
    )
    def test_drops_what_is_not_being_copied(
        self, rig: Rig, ref_cnt: int, is_dropped: bool
    ) -> None:
        rig.manager.put(b"h" * 32, ref_cnt)
        assert rig.host.drop(b"h" * 32 + bytes(4)) is is_dropped
        assert len(rig.manager.events) == len(rig.manager.freed) == is_dropped
        assert rig.manager._num_evictable_cache_chunks == 0

    def test_other_connectors_are_named(self) -> None:
        other = type("LMCacheConnector", (), {})()
        told = host_tier(SimpleNamespace(connector=other))
        assert isinstance(told, str)
        assert "LMCacheConnector keeps its blocks elsewhere" in told
        told = host_tier(SimpleNamespace(connector=None))
        assert isinstance(told, str)
        assert "--kv-transfer-config" in told


class TestContents:
    def test_blocks_on_the_host_are_known_when_their_pages_are_gone(
        self, rig: Rig
    ) -> None:
        keys = rig.send(TOKENS)
        for one in chain(TOKENS, SIZE)[:2]:
            rig.manager.put(one)
        rig.wash()
        assert [rig.contents.get(one) is not None for one in keys] == [
            True,
            True,
            False,
            False,
        ]

    def test_and_looked_after_once_however_often_they_come_and_go(
        self, rig: Rig
    ) -> None:
        prompts = [list(range(first, first + 12)) for first in (100, 200, 300)]
        for tokens in prompts:
            for one in FakeRequest(tokens, SIZE, None).block_hashes:
                rig.manager.put(one)
        for _ in range(20):
            for tokens in prompts:
                rig.send(tokens)
        assert len(rig.contents) == 18
        assert len(rig.contents._spilled) <= 18

    def test_those_that_stay_there_for_good_let_the_others_be_forgotten(
        self, rig: Rig
    ) -> None:
        """What the host has no more is found however much stands in front of it."""
        for first in range(0, 240, 12):
            tokens = list(range(first, first + 12))
            for one in chain(tokens, SIZE):
                rig.manager.put(one)
            rig.send(tokens)
        num_stay = len(rig.manager.chunks)
        before: list[bytes] = []
        for first in range(1_000, 20_000, 12):
            tokens = list(range(first, first + 12))
            names = chain(tokens, SIZE)
            for one in names:
                rig.manager.put(one)
            rig.send(tokens)
            for one in before:
                rig.manager.chunks.pop(one + bytes(4))
            before = names
        assert len(rig.contents) <= 3 * num_stay

    def test_and_forgotten_when_the_host_drops_them(self, rig: Rig) -> None:
        keys = rig.send(TOKENS)
        for one in chain(TOKENS, SIZE):
            rig.manager.put(one)
        rig.wash()
        rig.manager.chunks.clear()
        for start in range(3):
            rig.send(list(range(start, start + 12)))
        assert not any(rig.contents.get(one) for one in keys)
        assert len(rig.contents) <= 6


def found(rig: Rig, keys: list[int]) -> list[Chain]:
    return [one for one in rig.restoring.chains(keys) if one is not None]


class TestRestoring:
    @pytest.mark.parametrize("salt", [None, "pepper"])
    def test_finds_the_prompt_of_blocks_that_are_away(
        self, rig: Rig, salt: str | None
    ) -> None:
        keys = rig.send(TOKENS, salt)
        for one in chain(TOKENS, SIZE, salt):
            rig.manager.put(one)
        assert found(rig, keys) == []  # they are on pages
        rig.wash()
        whole = [*TOKENS, TOKENS[-1]], salt, keys
        assert found(rig, keys) == [whole]
        assert found(rig, keys[2:3]) == [([*TOKENS[:6], TOKENS[5]], salt, keys[2:3])]

    def test_a_chain_with_a_hole_stays_away(self, rig: Rig) -> None:
        keys = rig.send(TOKENS)
        for one in chain(TOKENS, SIZE)[1:]:
            rig.manager.put(one)
        rig.wash()
        assert found(rig, keys) == []

    def test_what_the_tokens_do_not_name_stays_away(self, rig: Rig) -> None:
        """Such as blocks of a LoRA adapter, whose key looks like a salt."""
        keys = rig.send(TOKENS, "pepper")
        for one in chain(TOKENS, SIZE, "pepper"):
            rig.manager.put(one)
        rig.wash()
        rig.contents._extra_keys = lambda *_: None
        rig.restoring._naming = BlockNaming(SIZE, lambda *_: bytes(32))
        assert found(rig, keys) == []

    def test_no_prompt_is_longer_than_the_engine_takes(self, rig: Rig) -> None:
        keys = rig.send(TOKENS)
        for one in chain(TOKENS, SIZE):
            rig.manager.put(one)
        rig.wash()
        rig.restoring._longest = 7
        ((tokens, _, back),) = found(rig, keys)  # type: ignore[misc]
        assert (len(tokens), back) == (5, keys[:2])


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 5)), max_size=60
    )
)
def test_followers_are_those_of_a_set(calls: list[tuple[bool, int, int]]) -> None:
    followers, naive = Followers(), dict[int, set[bytes]]()
    for is_added, parent, child in calls:
        name = bytes([child])
        if is_added:
            followers.add(parent, name)
            naive.setdefault(parent, set()).add(name)
        else:
            followers.discard(parent, name)
            naive.get(parent, set()).discard(name)
    assert {one: set(followers.of(one)) for one in range(4)} == {
        one: naive.get(one, set()) for one in range(4)
    }
    assert len(followers) == sum(map(bool, naive.values()))
