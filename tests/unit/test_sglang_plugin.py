"""The plugin's work on SGLang's tree, on a fake of it."""

import asyncio
import stat
from collections.abc import Sequence
from typing import Any, cast

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fake_sglang_tree import PAGE, FakeCore, digest, fake_tree, keys_of

from warmroute.adapters.kv_control import VERBS
from warmroute.adapters.kv_plugin.calls import CoreCalls
from warmroute.adapters.kv_plugin.entry import is_wanted
from warmroute.adapters.kv_plugin.verbs import DeafControl, packed
from warmroute.adapters.sglang.plugin import entry, names
from warmroute.adapters.sglang.plugin.desk import Desk, TreeControl
from warmroute.adapters.sglang.plugin.endpoint import DeafLink, DoorApp, SGLangEndpoint
from warmroute.adapters.sglang.plugin.installation import tree_fault
from warmroute.adapters.sglang.plugin.link import SchedulerLink, SchedulerSocket
from warmroute.adapters.sglang.plugin.pins import Pins
from warmroute.adapters.sglang.plugin.publishing import Publishing
from warmroute.adapters.sglang.plugin.ranking import Ranking
from warmroute.adapters.sglang.plugin.tree import Tree
from warmroute.adapters.sglang.plugin.verbs import Verbs
from warmroute.adapters.sglang.plugin.versions import SUPPORTED, version_fault
from warmroute.policies.errors import ClientError

CHAIN = [1, 2, 3, 4, 5, 6, 7, 8]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Strategy:
    """Order by the time of the last use, as SGLang's lru does."""

    def get_priority(self, node: Any) -> float:
        return float(node.last_access_time)


class Rig:
    """The verbs over a fake tree."""

    def __init__(self, cap_blocks: int = 100) -> None:
        self.tree, self.core = fake_tree()
        self.clock = Clock()
        self.pins = Pins(self.tree, cap_blocks, self.clock)
        self.core.eviction_strategy = Strategy()
        self.ranking = Ranking(self.core, "lru", {}, ("lru", "lfu"), self._make)
        self.num_published = 0
        self.publishing = Publishing(self._publish, None, 3)
        verbs = Verbs(
            self.tree,
            self.pins,
            self.ranking,
            self.publishing,
            self._hash_pages,
            lambda salt: f"{salt}!",
            {"budget": "unsupported: no", "restore": "unsupported: never"},
        )
        self.verbs = verbs
        self.control = TreeControl(verbs, self.pins, self.publishing)
        self._ticket = 0

    def _make(self, name: str, options: dict[str, object] | None) -> Strategy:
        if options:
            raise TypeError("no such option")
        return Strategy()

    def _publish(self) -> None:
        self.num_published += 1

    @staticmethod
    def _hash_pages(tokens: Sequence[int], prior: str | None, size: int) -> list[str]:
        return [
            digest([*(prior or "").encode(), *tokens[: end + size]])
            for end in range(0, len(tokens), size)
        ]

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """Perform a verb to its end; returns its parts as one, lists joined."""
        self._ticket += 1
        if "hashes" in arguments:
            arguments["hashes"] = packed(cast(list[int], arguments["hashes"]))
        answer = self.control.call(self._ticket, verb, arguments)
        told: dict[str, Any] = {}
        while True:
            assert "error" not in answer, answer
            for part in cast(list[dict[str, Any]], answer["parts"]):
                for name, value in part.items():
                    is_sum = isinstance(value, list) or name in ("changed", "dropped")
                    told[name] = (
                        told[name] + value if name in told and is_sum else value
                    )
            if answer["done"]:
                return told
            answer = self.control.call(self._ticket, "", {})

    def held(self) -> set[int]:
        """Return the keys of all that is cached."""
        return {key for node in self.tree.nodes() for key in self.tree.keys(node)}

    def locked(self) -> set[int]:
        """Return the keys of all that is locked."""
        return {
            key
            for node in self.tree.nodes()
            if node.component_data[0].lock_ref
            for key in self.tree.keys(node)
        }


def test_a_tail_is_evicted_and_the_head_stays() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    keys = keys_of(CHAIN)
    told = rig.ask("evict", hashes=keys[1:])
    assert (told["evicted"], told["kept"]) == ([keys[3], keys[2], keys[1]], [])
    assert rig.held() == {keys[0]}
    assert rig.num_published > 0


def test_a_whole_branch_goes_and_what_another_needs_stays() -> None:
    rig = Rig()
    other = [1, 2, 3, 4, 9, 9]
    rig.core.insert(CHAIN)
    rig.core.insert(other)
    told = rig.ask("evict", hashes=keys_of(CHAIN))
    shared = keys_of(CHAIN)[:2]
    assert set(told["evicted"]) == set(keys_of(CHAIN)[2:])
    assert told["kept"] == [[key, "followed"] for key in shared]
    assert rig.held() == set(keys_of(other))


def test_what_is_used_or_absent_is_kept_with_the_reason() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    rig.core.inc_full_pin(next(iter(rig.tree.nodes())).id)
    told = rig.ask("evict", hashes=[keys_of(CHAIN)[3], 5])
    assert told["kept"] == [[keys_of(CHAIN)[3], "referenced"], [5, "absent"]]


def test_what_is_under_way_ends_when_the_engine_empties_its_tree() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    (node,) = rig.tree.nodes()
    rig.core.root_node = FakeCore().root_node
    assert list(rig.tree.path(node)) == [node]


def test_what_is_on_the_host_alone_is_evicted_there() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    (node,) = rig.tree.nodes()
    node.component_data[0].host_value = object()
    assert rig.ask("offload", hashes=keys_of(CHAIN))["changed"] == 4
    rows = rig.ask("snapshot")["rows"]
    assert {row[4] for row in rows} == {"host"}
    assert len(rig.ask("evict", hashes=keys_of(CHAIN))["evicted"]) == 4
    assert rig.held() == set()


def test_nothing_is_offloaded_that_the_host_does_not_have() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    assert rig.ask("offload", hashes=keys_of(CHAIN))["changed"] == 0
    assert rig.held() == set(keys_of(CHAIN))


def test_a_snapshot_tells_parents_depths_references_and_contents() -> None:
    rig = Rig()
    rig.core.insert(CHAIN[:4], "s")
    rig.core.inc_full_pin(next(iter(rig.tree.nodes())).id)
    told = rig.ask("snapshot", token_ids=True)
    first, second = keys_of(CHAIN[:4], "s")
    assert (told["seq"], told["block_size"]) == (2, PAGE)
    assert told["rows"] == [
        [first, None, 0, 1, "gpu", [1, 2], ["s"]],
        [second, first, 1, 1, "gpu", [3, 4], None],
    ]


def test_a_long_node_is_told_in_slices_as_one_chain() -> None:
    rig = Rig()
    tokens = list(range(700))
    rig.core.insert(tokens)
    rig.core.insert([*tokens[:300], 5, 5])
    rows = rig.ask("snapshot", token_ids=True)["rows"]
    told = {row[0]: row for row in rows}
    keys = keys_of(tokens)
    assert [told[key][1] for key in keys] == [None, *keys[:-1]]
    assert [token for key in keys for token in told[key][5]] == tokens
    assert len(rows) == 351


def test_a_prefix_is_locked_to_the_page_and_let_go_when_due() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    keys = keys_of(CHAIN)
    told = rig.ask("retain", hashes=keys[:2], ttl_s=10.0)
    assert told == {"retained": 2, "total": 2, "cap": 100}
    assert rig.locked() == set(keys[:2])
    assert rig.ask("expire") == {"due_s": 10.0}
    rig.clock.now += 10.0
    rig.control.expire()
    assert rig.locked() == set()
    assert rig.ask("expire") == {"due_s": None}


def test_the_later_deadline_counts() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    rig.ask("retain", hashes=keys_of(CHAIN), ttl_s=60.0)
    rig.ask("retain", hashes=keys_of(CHAIN), ttl_s=5.0)
    rig.clock.now += 30.0
    rig.control.expire()
    assert rig.locked() == set(keys_of(CHAIN))
    assert rig.ask("release", hashes=keys_of(CHAIN))["changed"] == 4
    assert rig.locked() == set()


def test_the_cap_counts_what_lies_in_front_as_well() -> None:
    rig = Rig(cap_blocks=3)
    rig.core.insert(CHAIN)
    told = rig.ask("retain", hashes=keys_of(CHAIN)[1:], ttl_s=5.0)
    assert (told["retained"], told["total"], told["cap"]) == (2, 3, 3)
    assert rig.locked() == set(keys_of(CHAIN)[:3])


class Counted:
    """A tree that counts how often it is asked for pages."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.num_asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tree, name)

    def num_pages(self, node: Any) -> int:
        self.num_asked += 1
        return self.tree.num_pages(node)


def test_what_is_locked_is_not_counted_anew_for_every_node() -> None:
    """The engine serves nobody meanwhile: 4,000 prompts took it seconds."""
    rig = Rig(cap_blocks=250)
    for at in range(300):
        rig.core.insert([10 * at + one for one in range(PAGE)])
    counted: Any = Counted(rig.tree)
    rig.pins._tree = rig.pins._census._tree = counted
    told = rig.ask("retain", hashes=sorted(rig.held()), ttl_s=5.0)
    assert (told["retained"], told["total"]) == (250, 250)
    assert counted.num_asked < 10 * 300


class Measured(Tree):
    """A tree that counts what is looked at."""

    __slots__ = ("num_looked",)

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree._cache, tree._namespaced)
        self.num_looked = 0

    def keys_named(self, hashes: Sequence[str], seed: bytes | None) -> list[int]:
        self.num_looked += len(hashes)
        return super().keys_named(hashes, seed)

    def num_pages(self, node: Any) -> int:
        self.num_looked += 1
        return super().num_pages(node)

    def is_alive(self, node: Any) -> bool:
        self.num_looked += 1
        return super().is_alive(node)


@pytest.mark.parametrize("verb", ["retain", "release"])
def test_however_much_is_named_no_slice_looks_at_much(verb: str) -> None:
    rig = Rig(cap_blocks=10_000)
    for at in range(2_500):
        rig.core.insert([100 * at + one for one in range(2 * PAGE)])
    rig.core.insert([7] * 700 * PAGE)
    keys = sorted(rig.held())
    if verb == "release":
        rig.ask("retain", hashes=keys, ttl_s=5.0)
    tree = Measured(rig.tree)
    rig.verbs._tree = rig.pins._tree = rig.pins._census._tree = tree
    most = before = 0
    for _ in getattr(rig.verbs, verb)({"hashes": packed(keys), "ttl_s": 5.0}):
        most, before = max(most, tree.num_looked - before), tree.num_looked
    assert len(rig.locked()) == (len(keys) if verb == "retain" else 0)
    assert before >= len(keys) == 5_700
    assert most < 3_000


def test_many_that_are_due_go_some_at_a_time() -> None:
    rig = Rig(cap_blocks=1_000)
    for at in range(100):
        rig.core.insert([100 * at + one for one in range(PAGE)])
    rig.ask("retain", hashes=sorted(rig.held()), ttl_s=5.0)
    rig.clock.now += 5.0
    rig.control.expire()
    assert 0 < len(rig.locked()) < 100
    assert rig.pins.due_s == 0.0
    rig.control.expire()
    assert (rig.locked(), rig.pins.due_s) == (set(), None)


def test_what_the_engine_splits_while_it_is_looked_for_is_found() -> None:
    """One of two long nodes is passed first; the other is split before it is."""
    rig = Rig()
    one, other = ([first, *range(10, 2_209)] for first in (1, 2))
    rig.core.insert(one)
    rig.core.insert(other)
    keys, found = keys_of(one), dict[int, Any]()
    looking = rig.tree.find(keys[:500], found)
    next(looking)
    assert not found
    rig.core.insert([*one[:600], 7, 7])
    rig.core.insert([*one[:200], 7, 7])
    for _ in looking:
        pass
    assert list(found) == keys[:500]
    for key, (node, page) in found.items():
        assert rig.tree.keys(node)[page] == key


def test_what_is_shortened_was_split_by_the_engine_meanwhile() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    keys = keys_of(CHAIN)
    rig.ask("retain", hashes=keys, ttl_s=5.0)
    rig.core.insert([*CHAIN[:6], 9, 9])
    rig.core.insert([*CHAIN[:4], 8, 8])
    assert rig.ask("release", hashes=keys[1:])["changed"] == 3
    assert rig.locked() == {keys[0]}
    rig.ask("release", hashes=keys)
    assert rig.locked() == set()


def test_a_flush_of_the_engine_ends_retention() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    rig.ask("retain", hashes=keys_of(CHAIN), ttl_s=5.0)
    rig.core._node_arena.clear()
    rig.core.root_node = rig.core._new(rig.core.root_node.key, None)
    assert rig.ask("retain", hashes=[], ttl_s=5.0)["total"] == 0
    rig.clock.now += 10.0
    rig.control.expire()
    assert rig.pins.due_s is None


def test_a_flush_leaves_what_is_retained() -> None:
    rig = Rig()
    rig.core.insert(CHAIN)
    rig.core.insert([9, 9, 8, 8])
    rig.ask("retain", hashes=keys_of(CHAIN)[:3], ttl_s=5.0)
    told = rig.ask("flush")
    assert (told["dropped"], told["used"], told["empty"]) == (3, 3, False)
    assert rig.held() == set(keys_of(CHAIN)[:3])


def test_demoted_nodes_come_first_until_they_are_used() -> None:
    rig = Rig()
    rig.core.insert([1, 1])
    rig.core.insert(CHAIN)
    older, younger = sorted(rig.tree.nodes(), key=lambda node: node.id)
    order = Strategy()
    assert order.get_priority(older) < order.get_priority(younger)
    assert rig.ask("demote", hashes=keys_of(CHAIN))["changed"] == 4
    ranked = rig.core.eviction_strategy
    assert ranked.get_priority(younger) < ranked.get_priority(older)
    assert rig.core.components[0].session_ref_eviction_strategy is None
    younger.last_access_time += 100
    assert ranked.get_priority(older) < ranked.get_priority(younger)


def test_a_policy_is_changed_or_refused() -> None:
    rig = Rig()
    assert rig.ask("policy")["name"] == "lru"
    assert rig.ask("policy", name="lfu")["name"] == "lfu"
    for arguments in ({"name": "arc"}, {"name": "lru", "options": {"no": 1}}):
        refused = rig.control.call(1, "policy", dict(arguments))
        status, code, message = cast(list[Any], refused["error"])
        assert (status, code) == (400, "kv_policy_invalid")
        assert message.startswith("eviction policy")
    assert rig.ask("policy")["name"] == "lfu"


def test_a_prompt_is_named_in_pages_behind_its_salt() -> None:
    rig = Rig()
    tokens = list(range(150))
    assert len(rig.ask("hashes", token_ids=[*tokens, 1])["hashes"]) == 75
    salted = rig.ask("hashes", token_ids=tokens, cache_salt="s")["hashes"]
    assert salted[0] == int(digest([*b"s!", 0, 1])[:16], 16)


def test_unsupported_and_unknown_verbs_are_refused() -> None:
    rig = Rig()
    verbs = rig.ask("capabilities")["verbs"]
    assert set(verbs) == set(VERBS)
    for verb, status in (("budget", 501), ("restorable", 501), ("nothing", 404)):
        answer = rig.control.call(1, verb, {})
        assert cast(list[object], answer["error"])[0] == status


def test_a_desk_that_fails_is_shut_and_the_engine_runs_on(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    desk = Desk(DeafControl("no"), str(tmp_path / "s"), None)
    desk.turn()
    assert desk._socket is not None
    desk._socket._socket.close(linger=0)
    desk.turn()
    assert "KV control is off from now on" in caplog.text
    assert desk._socket is None
    desk.turn()


async def test_calls_go_through_a_private_socket_a_turn_at_a_time(
    tmp_path: Any,
) -> None:
    rig, path = Rig(), tmp_path / "s"
    rig.core.insert(CHAIN)
    desk = Desk(rig.control, str(path), None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    calls = CoreCalls(SchedulerLink(str(path)))
    asked = asyncio.create_task(calls.run("snapshot", token_ids=False))
    async with asyncio.timeout(10):
        while not asked.done():
            desk.turn()
            await asyncio.sleep(0)
    head, *parts = await asked
    assert head == {"seq": 2, "block_size": PAGE}
    desk.close()
    rows = [row for part in parts for row in cast(list[Any], part["rows"])]
    assert [row[0] for row in rows] == keys_of(CHAIN)


def test_what_is_no_call_is_not_answered(tmp_path: Any) -> None:
    rig, path = Rig(), tmp_path / "s"
    socket = SchedulerSocket(str(path), rig.control.call)
    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"ipc://{path}")
        for frames in ([b"junk"], [b"\x93"], [b"", b""], [b"\x93\x01\x02\x03"]):
            dealer.send_multipart(frames)
            while not socket.serve():
                pass
        assert not socket.serve()
        assert not dealer.poll(0)
    socket.close()


async def test_an_unknown_release_says_so_of_every_verb() -> None:
    calls = CoreCalls(DeafLink("SGLang 9 is not known to this plugin"))
    (told,) = await calls.run("capabilities")
    reasons = set(cast(dict[str, object], told["verbs"]).values())
    assert reasons == {"unsupported: SGLang 9 is not known to this plugin"}
    with pytest.raises(ClientError, match="unsupported: SGLang 9"):
        await calls.run("snapshot")


async def test_the_door_takes_its_own_paths_and_no_others() -> None:
    taken: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        taken.append(scope.get("path", scope["type"]))

    door = DoorApp(inner, SGLangEndpoint(DeafLink("no")))
    for scope in (
        {"type": "lifespan"},
        {"type": "http", "path": "/v1/completions"},
        {"type": "http", "path": "/warmroute/else"},
        {"type": "websocket", "path": "/warmroute/kv/evict"},
    ):
        await door(cast(Any, scope), None, None)
    assert taken == [
        "lifespan",
        "/v1/completions",
        "/warmroute/else",
        "/warmroute/kv/evict",
    ]


def test_other_releases_and_trees_are_refused_in_words() -> None:
    assert version_fault(SUPPORTED[0]) is None
    assert version_fault(f"{SUPPORTED[0]}+cpu") is None
    assert "0.9.9 is not known" in str(version_fault("0.9.9"))
    cache: Any = type("Cache", (), {"tree_core": FakeCore()})
    assert "start SGLang with SGLANG_UNIFIED" in str(tree_fault(cache))


def test_nothing_happens_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(names.PLUGINS_VARIABLE, "other, another")
    assert not is_wanted(names.PLUGINS_VARIABLE)
    entry.register()
    monkeypatch.setenv(names.PLUGINS_VARIABLE, "other, warmroute")
    assert is_wanted(names.PLUGINS_VARIABLE)


CHAINS = st.lists(st.integers(1, 3), min_size=1, max_size=5).map(
    lambda pages: [page for page in pages for _ in range(PAGE)]
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "evict", "retain", "release", "wait", "flush"]),
        CHAINS,
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(STEPS)
def test_whatever_is_done_locks_and_pages_agree(
    steps: list[tuple[str, list[int], int]],
) -> None:
    """Against sets: nothing retained is lost, and nothing stays locked at the end."""
    rig = Rig(cap_blocks=6)
    for verb, chain, skip in steps:
        keys, before, kept = keys_of(chain)[skip:], rig.held(), rig.locked()
        if verb == "insert":
            rig.core.insert(chain)
            assert rig.held() == before | set(keys_of(chain))
        elif verb == "wait":
            rig.clock.now += 10 * skip
            rig.control.expire()
        elif verb == "flush":
            rig.ask("flush")
            assert rig.held() == kept
        elif not keys:
            continue
        elif verb == "evict":
            told = rig.ask("evict", hashes=keys)
            gone = set(told.get("evicted", ()))
            assert rig.held() == before - gone
            assert not gone & kept
            assert gone | {key for key, _ in told["kept"]} == set(keys)
        elif verb == "retain":
            told = rig.ask("retain", hashes=keys, ttl_s=15.0)
            assert set(keys[: told["retained"]]) <= rig.locked()
            assert told["total"] == len(rig.locked()) <= 6
        else:
            rig.ask("release", hashes=keys)
    rig.clock.now += 1000
    rig.control.expire()
    assert rig.locked() == set()
