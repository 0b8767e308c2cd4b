"""The merged tree: what is shown of many caches, and what it costs."""

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.trunks import MAX_BRANCHES, Survey, survey


def look(index: PrefixIndex, names: list[str], nodes: int = 100, now: float = 0) -> Any:
    """Return a whole survey."""
    return finish(survey(index, {name: (name,) for name in names}, nodes, now))


def finish(steps: Survey) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def walk(node: Any) -> Iterator[Any]:
    yield node
    for child in node["children"]:
        yield from walk(child)


def insert(index: PrefixIndex, name: str, chain: list[int], stamp: float) -> None:
    index.insert(index.add_holder(name), chain, 16, stamp)


def holders(node: Any, names: list[str]) -> dict[str, int]:
    """Return the tokens of a node that each backend has."""
    held = int(node["held"], 16)
    found = {n: node["tokens"] for at, n in enumerate(names) if held >> at & 1}
    return found | {names[at]: tokens for at, tokens in node.get("part", [])}


class TestSurvey:
    def test_shows_a_shared_trunk_once(self) -> None:
        """Both backends are on it, each alone on what only it has."""
        index = PrefixIndex()
        insert(index, "a", [1, 2, 3, 4], 1.0)
        insert(index, "b", [1, 2, 5], 2.0)
        found = look(index, ["a", "b"], now=12.0)
        (trunk,) = found["root"]["children"]
        assert (trunk["tokens"], trunk["held"], trunk["hits"]) == (32, "3", 2)
        assert trunk["last_used_s"] == 10.0
        assert {(one["held"], one["start"]) for one in trunk["children"]} == {
            ("1", 32),
            ("2", 32),
        }
        assert (found["num_blocks"], found["blocks"]) == (5, [4, 3])

    def test_joins_the_turns_of_a_chat(self) -> None:
        """A run that only continues another, for the same backends, is no branch."""
        index = PrefixIndex()
        insert(index, "a", [1, 2], 1.0)
        insert(index, "b", [1, 2], 2.0)
        insert(index, "a", [1, 2, 3], 3.0)
        insert(index, "a", [1, 2, 3, 4, 5], 4.0)
        insert(index, "a", [1, 2, 3, 4], 5.0)
        (trunk,) = look(index, ["a", "b"])["root"]["children"]
        (chat,) = trunk["children"]
        assert (trunk["tokens"], chat["tokens"], chat["children"]) == (32, 48, [])
        assert (chat["id"], chat["hash"]) == (f"{3:016x}", f"{5:016x}")
        assert chat["ends"] == [f"{4:016x}"]

    def test_tells_who_has_a_part(self) -> None:
        """A backend that lost the end has its tokens beside, and no bit."""
        index = PrefixIndex()
        insert(index, "a", [1, 2, 3], 1.0)
        insert(index, "b", [1, 2, 3], 2.0)
        index.truncate(index.add_holder("b"), [1, 2, 3], 1)
        (run,) = look(index, ["a", "b"])["root"]["children"]
        assert (run["held"], run["part"], run["num_held"]) == ("1", [[1, 16]], 2)

    def test_tells_lower_tiers_apart(self) -> None:
        """What lies in host memory is not on the GPU; a promise is."""
        index = PrefixIndex()
        index.insert(index.add_holder("a", "host"), [1], 16, 1.0)
        index.insert(index.add_holder("b", "promised"), [1], 16, 2.0)
        (run,) = look(index, ["a", "b"])["root"]["children"]
        assert (run["held"], run["host"]) == ("2", "1")

    def test_takes_the_most_used_first(self) -> None:
        """Age takes away from use: what nobody asks for any more makes room."""
        index = PrefixIndex()
        for stamp in range(5):
            insert(index, "a", [1], float(stamp))
        insert(index, "a", [2], 9000.0)
        found = look(index, ["a"], nodes=1, now=9001.0)["root"]
        assert [one["id"] for one in found["children"]] == [f"{2:016x}"]
        assert found["omitted"] == 1

    def test_leaves_out_what_goes_under_way(self) -> None:
        """The index may change between two steps."""
        index = PrefixIndex(1 << 26)
        for at in range(5000):
            insert(index, "a", [at + 1], float(at))
        steps = survey(index, {"a": ("a",)}, 50, 5000.0)
        next(steps)
        index.remove_holder(index.add_holder("a"))
        steps.close()
        assert look(index, ["a"])["root"]["children"] == []

    def test_a_backend_has_what_any_of_its_ranks_has(self) -> None:
        """Ranks are one backend: blocks add up, and the longest part counts."""
        index = PrefixIndex()
        insert(index, "a", [1, 2], 1.0)
        insert(index, "a rank 1", [1, 2, 3], 2.0)
        index.truncate(index.add_holder("a"), [1, 2], 1)
        steps = survey(index, {"a": ("a", "a rank 1")}, 9, 3.0)
        found = finish(steps)
        assert (found["backends"], found["blocks"]) == (["a"], [4])
        assert [one["held"] for one in walk(found["root"])] == ["0", "1", "1"]

    def test_ignores_backends_that_were_not_named(self) -> None:
        index = PrefixIndex()
        insert(index, "a", [1], 1.0)
        insert(index, "b", [1, 2], 2.0)
        assert [one["held"] for one in walk(look(index, ["a"])["root"])] == [
            *("0", "1", "0")
        ]

    @given(
        st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.lists(st.integers(1, 4), min_size=1, max_size=6),
            ),
            max_size=12,
        )
    )
    def test_shows_exactly_what_is_held(
        self, sent: list[tuple[str, list[int]]]
    ) -> None:
        """With room for all, the tokens of every backend add up to what it has."""
        index, names = PrefixIndex(), ["a", "b", "c"]
        model: dict[str, set[tuple[int, ...]]] = {name: set() for name in names}
        for name in names:
            index.add_holder(name)
        for stamp, (name, chain) in enumerate(sent):
            prefixes = [tuple(chain[: n + 1]) for n in range(len(chain))]
            hashes = [hash(prefix) % 2**64 for prefix in prefixes]
            insert(index, name, hashes, float(stamp))
            model[name] |= set(prefixes)
        found = look(index, names, 1000)
        sums = dict.fromkeys(names, 0)
        for node in walk(found["root"]):
            for name, tokens in holders(node, names).items():
                sums[name] += tokens
        assert sums == {name: 16 * len(blocks) for name, blocks in model.items()}

    def test_is_bounded_for_200_backends_and_a_million_blocks(self) -> None:
        """240 nodes, below 100 kB, and no step that considers more than 1,200."""
        draw = random.Random(1)
        index, names = PrefixIndex(1 << 30), [f"b{at}" for at in range(200)]
        numbers = [index.add_holder(name) for name in names]
        trunks = [[draw.getrandbits(64) for _ in range(60)] for _ in range(40)]
        stamp = 0
        while index.num_blocks < 1_000_000:
            stamp += 1
            head = draw.choice(trunks) if stamp % 5 else []
            tail = [draw.getrandbits(64) for _ in range(draw.randrange(20, 300))]
            index.insert(draw.choice(numbers), head + tail, 16, float(stamp))
        steps = list[None]()
        running = survey(index, {n: (n,) for n in names}, 240, float(stamp))
        while True:
            try:
                steps.append(next(running))
            except StopIteration as done:
                found = done.value
                break
        nodes = list(walk(found["root"]))
        assert (found["num_shown"], len(nodes)) == (240, 241)
        assert all(len(one["children"]) <= MAX_BRANCHES for one in nodes)
        assert len(str(found)) < 100_000
        considered = sum(len(one["children"]) + one["omitted"] for one in nodes)
        assert len(steps) > considered / 1200
        assert max(one["num_held"] for one in nodes) > 50
