"""Cache killers: found where they are, and nowhere else."""

import re
import tracemalloc
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.killer_traffic import (
    Body,
    Writer,
    chat,
    found_in,
    real_chats,
    retrieved,
    time_of,
    tools,
)

from warmroute.policies.killers.chunks import MAX_CHUNKS, Chunks
from warmroute.policies.killers.cluster import Cluster
from warmroute.policies.killers.counts import ChunkCounts
from warmroute.policies.killers.detector import KillerDetector
from warmroute.policies.killers.kinds import classify
from warmroute.policies.killers.masks import mask
from warmroute.policies.killers.sites import Sites

WRITTEN = Writer().text(30)
SHAPES = bytes.maketrans(b"abcgv2", b"xxxxx9")


class TestFinding:
    def test_a_timestamp_in_the_system_prompt(self) -> None:
        """Named within 200 requests, with its place and what it costs."""
        writer = Writer()
        shared = writer.text(20)
        traffic = (
            chat(f"You help. It is {time_of(at)}.\n{shared}", writer.sentence())
            for at in range(200)
        )
        (killer,) = found_in(traffic)
        assert killer.kind == "timestamp"
        assert killer.token_offset < 10
        assert killer.first_block(16) == 0
        lost = len(shared) / 4
        assert killer.tokens_a_request == pytest.approx(lost, rel=0.1)
        assert killer.tokens_a_day == pytest.approx(lost * 86_400, rel=0.15)
        assert "»Xx xx 9999-99-99X99:99:99X.«" in killer.example.replace(" «", "«")
        assert killer.sentence.startswith("a time or date at about token ")
        assert "move it behind the shared text" in killer.sentence

    @pytest.mark.parametrize("num_between", [64, 200])
    def test_a_rare_template_is_found_among_prompts_that_share_nothing(
        self, num_between: int
    ) -> None:
        """Nor is it forgotten for them."""
        writer = Writer()
        shared = writer.text(20)

        def traffic() -> Iterator[Body]:
            for at in range(24):
                yield chat(f"It is {time_of(at)}.\n{shared}", writer.sentence())
                for _ in range(num_between):
                    yield chat(writer.text(4), writer.sentence())

        (killer,) = found_in(traffic())
        assert killer.kind == "timestamp"

    def test_what_was_found_outlasts_chats_that_lose_nothing(self) -> None:
        """Each of a hundred chats is a cluster of its own; room is for 64."""
        writer = Writer()
        shared = writer.text(20)

        def traffic() -> Iterator[Body]:
            for at in range(30):
                yield chat(f"It is {time_of(at)}.\n{shared}", writer.sentence())
            for _ in range(100):
                own = writer.text(20)
                for _ in range(12):
                    yield chat(own, writer.sentence())

        (killer,) = found_in(traffic())
        assert killer.kind == "timestamp"

    @pytest.mark.parametrize("num_at_once", [1, 8])
    def test_a_timestamp_in_front_of_real_chats(self, num_at_once: int) -> None:
        """Growing chats, whose own history is no shared text."""

        def stamped() -> Iterator[Body]:
            for at, body in enumerate(real_chats(num_at_once)):
                first = body["messages"][0]
                if first["role"] == "system":
                    first["content"] = f"Now: {time_of(at)}\n{first['content']}"
                yield body
                if at == 199:
                    return

        (killer, *_) = found_in(stamped())
        assert killer.kind == "timestamp"

    @pytest.mark.parametrize(
        ("kind", "front"),
        [
            ("uuid", lambda one: f"Session {uuid.UUID(int=one.draw.getrandbits(128))}"),
            ("id", lambda one: f"Trace {one.draw.getrandbits(64):016x}a1"),
            ("number", lambda one: f"Request number {one.draw.randrange(10**6)}"),
            ("timestamp", lambda one: f"Now 11/30/2026, {one.draw.randrange(10**4)}"),
            ("text", lambda one: f"The user is {one.text(9)}"),
        ],
    )
    def test_other_things_in_front(self, kind: str, front) -> None:
        writer = Writer()
        shared = writer.text(12)
        traffic = (
            chat(f"{front(writer)}\n{shared}", writer.sentence()) for _ in range(200)
        )
        assert [one.kind for one in found_in(traffic)] == [kind]

    def test_tools_in_varying_order(self) -> None:
        writer = Writer()
        some, shared = tools(writer, 6), writer.text(12)
        traffic = (
            chat(shared, writer.sentence(), tools=writer.draw.sample(some, 6))
            for _ in range(200)
        )
        (killer,) = found_in(traffic)
        assert killer.kind == "tool_order"
        assert "order of the tools" in killer.sentence

    def test_one_among_clean_traffic(self) -> None:
        """Only the requests that have it are told."""
        writer = Writer()
        one, other = writer.text(12), writer.text(12)
        traffic = (
            chat(f"Now {time_of(at)}. {one}", writer.sentence())
            if at % 2
            else chat(other, writer.text(5))
            for at in range(300)
        )
        (killer,) = found_in(traffic)
        assert killer.kind == "timestamp"
        assert killer.requests < 160

    def test_requests_not_looked_at_count_in_the_cost(self) -> None:
        def traffic() -> Iterator[Body]:
            writer = Writer()
            shared = writer.text(12)
            for at in range(100):
                yield chat(f"Now {time_of(at)}. {shared}", writer.sentence())

        (one,), (ten,) = found_in(traffic()), found_in(traffic(), weight=10)
        assert ten.tokens_a_day == pytest.approx(10 * one.tokens_a_day)
        assert ten.tokens_a_request == one.tokens_a_request


class TestCleanTraffic:
    @pytest.mark.parametrize("num_at_once", [1, 8, 20])
    def test_real_chats(self, num_at_once: int) -> None:
        assert found_in(real_chats(num_at_once)) == []

    @pytest.mark.parametrize("num_docs", [1, 4])
    @pytest.mark.parametrize("system", ["You answer.", Writer(2).text(20)])
    def test_retrieved_documents(self, system: str, num_docs: int) -> None:
        """Popular documents come often, and in varying places."""
        assert found_in(retrieved(Writer(), system, 500, num_docs)) == []

    def test_a_shared_system_prompt_and_the_users_own_words(self) -> None:
        writer = Writer()
        shared = writer.text(20)
        traffic = (
            chat(shared, writer.text(writer.draw.randrange(1, 30))) for _ in range(300)
        )
        assert found_in(traffic) == []

    def test_a_timestamp_behind_the_shared_text(self) -> None:
        """Where it ought to be."""
        writer = Writer()
        shared = writer.text(20)
        traffic = (
            chat(f"{shared} It is {time_of(at)}.", writer.sentence())
            for at in range(200)
        )
        assert found_in(traffic) == []

    def test_a_date_that_changes_once_a_day(self) -> None:
        writer = Writer()
        shared = writer.text(20)
        traffic = (
            chat(f"Today is 2026-11-{1 + at // 100:02}. {shared}", writer.sentence())
            for at in range(300)
        )
        assert found_in(traffic) == []

    def test_tools_in_the_same_order(self) -> None:
        writer = Writer()
        some, shared = tools(writer, 6), writer.text(12)
        traffic = (chat(shared, writer.sentence(), tools=some) for _ in range(200))
        assert found_in(traffic) == []

    def test_the_same_template_under_other_roots(self) -> None:
        """Caches that a salt keeps apart share nothing that could be lost."""
        writer = Writer()
        shared = writer.text(20)
        traffic = (
            chat(shared, writer.sentence(), cache_salt=f"tenant-{at % 7}")
            for at in range(300)
        )
        assert found_in(traffic) == []


def test_what_was_mended_fades() -> None:
    detector, writer = KillerDetector(secret=1), Writer()
    shared = writer.text(20)
    for at in range(100):
        text = f"Now {time_of(at)}. {shared} {writer.sentence()}".encode()
        detector.observe(text, 7, 4.0, float(at))
    assert detector.killers(100.0)
    assert detector.killers(4 * 3600.0) == []


def test_memory_is_bounded() -> None:
    """Below 8 MiB, whatever comes."""
    writer = Writer()
    texts = (
        f"Now {time_of(at)}. {writer.draw.getrandbits(32)} {writer.text(40)}".encode()
        for at in range(800)
    )
    tracemalloc.start()
    try:
        detector = KillerDetector()
        for at, text in enumerate(texts):
            detector.observe(text, at % 50, 4.0, float(at))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 8 * 2**20


def test_no_text_is_kept() -> None:
    """Only the masked example, of a bounded length."""
    writer = Writer()
    shared = "zebra quagga okapi. " * 3 + writer.text(20)
    traffic = (
        chat(f"Anna {time_of(at)} knows. {shared}", "zebra") for at in range(100)
    )
    (killer,) = found_in(traffic)
    assert set(re.findall(r"\w", killer.example)) <= set("xX9h")
    assert len(killer.example) <= 250


@pytest.mark.timeout(20)
def test_digests_in_names_do_not_hold_up_the_loop() -> None:
    """A digest that goes on as a name is found, and masked in no time."""
    writer = Writer()
    shared = writer.text(20)
    traffic = (
        chat(f"Case {at:0128x}_v2.\n{shared}", writer.sentence()) for at in range(200)
    )
    (killer,) = found_in(traffic)
    assert killer.kind == "id"


class TestChunks:
    @given(st.binary(max_size=3000), st.integers(0, 2**64 - 1))
    def test_cover_the_text(self, text: bytes, seed: int) -> None:
        """Whatever it is, in chunks of bounded size."""
        chunks = Chunks(text, seed)
        starts = [chunks.start(at) for at in range(len(chunks.ends))]
        sizes = [end - at for at, end in zip(starts, chunks.ends, strict=True)]
        assert all(0 < size <= 256 for size in sizes)
        assert len(sizes) <= MAX_CHUNKS
        assert sum(sizes) == (len(text) if len(sizes) < MAX_CHUNKS else sum(sizes))

    @given(st.text(max_size=200), st.text(max_size=200))
    def test_fall_into_step_again(self, one: str, other: str) -> None:
        """Behind any two beginnings, the same lines are the same chunks."""
        rest = "\n" + WRITTEN
        first, second = (
            Chunks((front + rest).encode("utf-8", "replace"), 1)
            for front in (one, other)
        )
        num = min(len(first.hashes), len(second.hashes))
        common = sum(
            a == b
            for a, b in zip(first.hashes[-num:], second.hashes[-num:], strict=True)
        )
        assert common >= len(Chunks(rest.encode(), 1).hashes) - 2

    def test_much_text_is_cut(self) -> None:
        assert len(Chunks(b"a. " * 10**6, 1).ends) == MAX_CHUNKS


class TestMask:
    @pytest.mark.parametrize(
        ("text", "masked"),
        [
            (b"Bob is 42, at 2026-11-30!", "Xxx xx 99, xx 9999-99-99!"),
            (b"id=4f3c9a1b0d", "xx=hhhhhhhhhh"),
            (
                b"6fa459ea-ee8a-3ca4-894e-db77e160355e",
                "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh",
            ),
            ("Grüße, 東京 ٣".encode(), "Xxxxx, xx x"),
            (b"\xffuser\xfehi\n\x1b[0m", " xxxx xx  [9x"),
        ],
    )
    def test_leaves_the_form_alone(self, text: bytes, masked: str) -> None:
        assert mask(text) == masked

    @pytest.mark.timeout(20)
    @pytest.mark.parametrize("end", [b"g", b"_v2", b"-", b"-abc"])
    def test_of_a_digest_with_a_name_behind_it_is_made_at_once(
        self, end: bytes
    ) -> None:
        """However long: the loop stands still meanwhile."""
        text = b"0f" * 72 + end
        assert mask(text).endswith(end.translate(SHAPES).decode())

    @given(st.binary(max_size=300))
    def test_leaves_no_letter_and_no_digit(self, text: bytes) -> None:
        masked = mask(text)
        assert set(re.findall(r"[^\W_]", masked)) <= set("xX9h")
        assert masked.isprintable()
        assert len(masked) <= len(text)


class TestParts:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            (b"at 10:03", "timestamp"),
            (b"1790000000", "timestamp"),
            (b"30 November", "timestamp"),
            (b"Nov 30", "timestamp"),
            (b"user_8f3kd93kfl2", "id"),
            (b"Call 7", "number"),
            (b"Dear Anna", "text"),
            (b"7" * 300, "text"),
        ],
    )
    def test_kinds_are_told_by_their_looks(self, text: bytes, kind: str) -> None:
        assert classify(text, 0, len(text)) == kind

    def test_counts_keep_what_comes_again(self) -> None:
        """Full, they forget what came once, and keep proportions."""
        counts = ChunkCounts(100)
        for at in range(1000):
            counts.add([1, *([2] if at % 2 else []), 10 + at])
        assert len(counts) <= 100
        assert counts.get(1) >= 1.5 * counts.get(2) > 0

    def test_sites_tell_how_many_go_on_alike(self) -> None:
        sites = Sites(2)
        assert sites.share(1, 7) == 1.0
        assert sites.share(1, None) == 0.5
        assert sites.share(1, 7) == pytest.approx(2 / 3)
        for _ in range(1000):
            share = sites.share(1, 7)
        assert share > 0.95
        sites.share(2, 7)
        sites.share(3, 7)
        assert sites.share(1, None) == 1.0

    def test_few_requests_are_no_killer(self) -> None:
        cluster = Cluster("c", 0.0)
        for at in range(7):
            cluster.count(1000, float(at))
            cluster.lose("uuid", 800, 200.0, 1, 3, "x")
        assert cluster.killer(7.0) is None
        for _ in range(2):
            cluster.count(1000, 7.0)
            cluster.lose("uuid", 800, 200.0, 1, 5, "y")
        killer = cluster.killer(7.0)
        assert killer is not None
        assert (killer.token_offset, killer.example) == (3, "x")
