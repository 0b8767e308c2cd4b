"""The other forms of traces: sessions, access records, Azure's lengths, a made load."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from unit.replay_rig import row, write_trace

from warmroute.proxy.replay.arrival import ClosedLoop
from warmroute.proxy.replay.trace import Trace, TraceError
from warmroute.proxy.replay.traces import read_trace

SESSION: dict[str, Any] = {
    "id": "s1",
    "block": 4,
    "tool_tokens": 8,
    "system_tokens": 4,
    "models": ["m"],
    "subagents": [{"agent": 1, "type": "x", "tool_tokens": 4, "system_tokens": 0}],
    "requests": [
        [0.0, 0, 0, 20, 5, 2.0, 0.0, -1, 0, [[1, 5]]],
        [10.0, 0, 0, 29, 5, None, 8.0, 0, 4, [[9, 3]]],
        [14.0, 1, 0, 9, 2, 1.0, 0.0, -1, 0, [[20, 2]]],
        [30.0, 0, 0, 33, 2, 1.0, 900.0, 1, 7, [[30, 1]]],
    ],
}


def lines(path: Path, *rows: Any) -> str:
    return str(write_trace(path, *rows))


def record(**changes: Any) -> dict[str, Any]:
    known = {
        "time": 1_700_000_000.0,
        "request_id": "r",
        "model": "m",
        "session": None,
        "grade": "exact",
        "block_size": 512,
        "blocks": ["00000000000000aa", "00000000000000bb"],
        "input_length": 1100,
        "output_length": 7,
        "policy": "expected_ttft",
        "chosen": "a",
        "predicted_tokens": 0,
        "cached_tokens": 0,
        "status": 200,
        "ttft_s": 0.1,
        "duration_s": 1.0,
    }
    return known | changes


class TestSessions:
    def read(self, tmp_path: Path, *sessions: Any, **limits: Any) -> Trace:
        return read_trace(lines(tmp_path / "s.jsonl", *sessions), **limits)

    def test_prompts_are_put_together_from_those_before(self, tmp_path: Path) -> None:
        """A shared head of 0.75 * 12 tokens is two blocks; one of 3 tokens is none."""
        trace = self.read(tmp_path, SESSION)
        first, second, agent, third = (list(one.blocks) for one in trace.requests)
        assert [len(first), len(second), len(agent), len(third)] == [5, 7, 2, 8]
        assert second[:4] == first[:4]
        assert third[:7] == second
        assert not set(agent) & set(third)
        assert trace.block_size == 4

    def test_sessions_share_tools_and_system_and_nothing_else(
        self, tmp_path: Path
    ) -> None:
        other = SESSION | {"id": "s2"}
        trace = self.read(tmp_path, SESSION, other)
        first, second = (list(trace.requests[at].blocks) for at in (0, 4))
        assert first[:2] == second[:2]
        assert not set(first[2:]) & set(second[2:])

    def test_turns_wait_for_their_own_agent(self, tmp_path: Path) -> None:
        """The sub-agent came 14 - 10 s after its caller, of unknown duration."""
        (session,) = self.read(tmp_path, SESSION, most_think_s=500.0).sessions
        assert [turn.after for turn in session.turns] == [-1, 0, 1, 1]
        assert [turn.think_s for turn in session.turns] == [0.0, 8.0, 4.0, 500.0]

    def test_a_session_ends_before_a_prompt_that_is_too_long(
        self, tmp_path: Path
    ) -> None:
        trace = self.read(tmp_path, SESSION, most_tokens=30)
        assert [one.prompt_tokens for one in trace.requests] == [20]
        assert trace.num_left_out == 3
        with pytest.raises(TraceError, match="begins with more than 10 tokens"):
            self.read(tmp_path, SESSION, most_tokens=10)

    def test_a_turn_comes_after_the_reply_and_the_time_to_think(
        self, tmp_path: Path
    ) -> None:
        trace = self.read(tmp_path, SESSION, SESSION | {"id": "s2"})
        loop, came = ClosedLoop(trace.sessions, 1, Random(0)), []
        while loop.next_at < 1e9:
            arrival = loop.pop()
            came.append((arrival.request.session, arrival.time_s))
            loop.finished(arrival, arrival.time_s + 1.0)
        start = came[0][1]
        gaps = [round(at - start, 6) for _, at in came]
        assert gaps == [0, 9, 14, 310, 311, 320, 325, 621]
        assert len({session for session, _ in came[:4]}) == 1
        assert len({session for session, _ in came[4:]}) == 1

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"block": 0}, "block is 0"),
            ({"requests": [[0, 0, 0, 0, 1, 1, 0, -1, 0, []]]}, "input is 0"),
            ({"requests": [[0, 0, 0, 4, -1, 1, 0, -1, 0, [[1, 1]]]]}, "output is -1"),
            (
                {"requests": [[0, 0, 0, 4, 1, 1, 0, 0, 0, []]]},
                "request 0 is not before",
            ),
            ({"requests": [[0, 0, 0, 4, 1, 1, 0, -1, 2, []]]}, "takes 2 blocks"),
            ({"requests": [[0, 0, 0, 9, 1, 1, 0, -1, 0, [[1, 1]]]]}, "1 blocks for 9"),
            (
                {"requests": [[0, 0, 0, 9, 1, 1, 0, -1, 0, [[1, 0]]]]},
                "no run of blocks",
            ),
            ({"requests": 3}, "no session"),
        ],
    )
    def test_what_cannot_be_is_said_with_its_line(
        self, change: Any, complaint: str, tmp_path: Path
    ) -> None:
        with pytest.raises(TraceError, match=r"s\.jsonl:2: .*" + complaint):
            self.read(tmp_path, SESSION, SESSION | change)

    def test_lines_of_another_block_size_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="needed: 4, as in the lines before"):
            self.read(tmp_path, SESSION, SESSION | {"block": 8})


class TestRecords:
    def read(self, tmp_path: Path, *rows: Any) -> Trace:
        return read_trace(lines(tmp_path / "r.jsonl", *rows))

    def test_they_are_sorted_by_when_they_came(self, tmp_path: Path) -> None:
        trace = self.read(
            tmp_path,
            record(time=1_700_000_005.0, session="00000000000000ff"),
            record(output_length=None),
            record(status=503),
        )
        assert [one.time_s for one in trace.requests] == [0.0, 5.0]
        assert [one.output_tokens for one in trace.requests] == [1, 7]
        assert trace.requests[1].blocks == (0xAA, 0xBB)
        assert trace.requests[1].session == "00000000000000ff"
        assert (trace.block_size, trace.num_left_out) == (512, 1)

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"blocks": ["xyz"]}, "no access record"),
            ({"input_length": 900}, "2 blocks for 900 tokens"),
            ({"input_length": -4}, "no access record"),
            ({"block_size": 256}, "block_size is 256"),
            ({"time": -1}, "no access record"),
        ],
    )
    def test_what_cannot_be_is_said_with_its_line(
        self, change: Any, complaint: str, tmp_path: Path
    ) -> None:
        with pytest.raises(TraceError, match=r"r\.jsonl:2: .*" + complaint):
            self.read(tmp_path, record(), record(**change))

    def test_estimated_lines_count_by_the_median_of_what_was_learned(
        self, tmp_path: Path
    ) -> None:
        """Their hashes stand for bytes; a prompt keeps those that it has room for."""
        learned = ((512, 500), (1204, 1300), (1469, 2900))
        rows = (
            record(grade="estimated", block_size=size, input_length=tokens)
            for size, tokens in learned
        )
        trace = self.read(tmp_path, *rows)
        assert trace.block_size == 1204
        assert [len(one.blocks) for one in trace.requests] == [0, 1, 2]
        assert [one.prompt_tokens for one in trace.requests] == [500, 1300, 2900]

    def test_exact_lines_rule_over_estimated_ones(self, tmp_path: Path) -> None:
        estimated = record(grade="estimated", block_size=700)
        assert self.read(tmp_path, estimated, record()).block_size == 512

    def test_nothing_but_failures_is_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="no request in it was answered"):
            self.read(tmp_path, record(status=429))


class TestAzure:
    HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

    def read(self, tmp_path: Path, *rows: str) -> Trace:
        path = tmp_path / "a.csv"
        path.write_text(self.HEAD + "".join(f"{one}\n" for one in rows))
        return read_trace(str(path))

    def test_times_and_lengths_are_those_of_the_file(self, tmp_path: Path) -> None:
        trace = self.read(
            tmp_path,
            "2023-11-16 18:17:03.9799600,4808,10",
            "2023-11-16 18:17:04.4799600,3180,8",
        )
        assert [one.time_s for one in trace.requests] == pytest.approx([0.0, 0.5])
        assert [one.prompt_tokens for one in trace.requests] == [4808, 3180]
        assert [len(one.blocks) for one in trace.requests] == [4808 // 64, 3180 // 64]

    def test_the_invented_past_is_the_same_each_time(self, tmp_path: Path) -> None:
        rows = [f"2023-11-16 18:17:{at:02},{200 + 70 * at},9" for at in range(60)]
        one, other = self.read(tmp_path, *rows), self.read(tmp_path, *rows)
        assert one.requests == other.requests
        seen: set[int] = set()
        num_shared = 0
        for request in one.requests:
            num_shared += len(seen & set(request.blocks))
            seen |= set(request.blocks)
        assert num_shared > 100

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("2023-11-16 18:17:09,12", "2 cells"),
            ("yesterday,12,1", "TIMESTAMP is 'yesterday'"),
            ("2023-11-16 18:17:09,-12,1", "ContextTokens is '-12'"),
            ("2023-11-16 18:17:09,12,", "GeneratedTokens is ''"),
            ("2023-11-16 18:17:01,12,1", "time goes backwards"),
        ],
    )
    def test_what_cannot_be_is_said_with_its_line(
        self, text: str, complaint: str, tmp_path: Path
    ) -> None:
        with pytest.raises(TraceError, match=r"a\.csv:3: .*" + complaint):
            self.read(tmp_path, "2023-11-16 18:17:03.9,48,1", text)

    def test_a_header_alone_is_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="no line behind the header"):
            self.read(tmp_path)


class TestRag:
    def test_equal_documents_in_equal_places_are_equal_blocks(self) -> None:
        trace = read_trace("rag:requests=200,docs=3,k=1,zipf=0,system=64,question=1")
        firsts = {one.blocks[0] for one in trace.requests}
        seconds = {one.blocks[1] for one in trace.requests}
        assert len(firsts) == 1
        assert len(seconds) == 3
        assert len(trace.requests) == 200

    def test_the_question_is_unlike_all_others(self) -> None:
        trace = read_trace("rag:requests=50,docs=1,k=1,question=64")
        lasts = {one.blocks[-1] for one in trace.requests}
        assert len(lasts) == 50

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("rag:nope=1", "unknown key 'nope'"),
            ("rag:k=x", "k is 'x'"),
            ("rag:rate=0", "rate is '0'"),
            ("rag:docs=3", "k is 5"),
        ],
    )
    def test_what_cannot_be_is_said(self, text: str, complaint: str) -> None:
        with pytest.raises(TraceError, match=complaint):
            read_trace(text)


def test_the_form_is_told_by_the_content(tmp_path: Path) -> None:
    """A line that is nothing known is complained about as Mooncake's."""
    mooncake = lines(tmp_path / "a", row(0, 513, [1]))
    assert read_trace(mooncake).block_size == 512
    cut = tmp_path / "b"
    cut.write_text(json.dumps(row(0, 1, []))[:-3])
    with pytest.raises(TraceError, match="not JSON"):
        read_trace(str(cut))


def test_requests_that_no_engine_can_hold_are_left_out(tmp_path: Path) -> None:
    rows = [row(0, 1000, [1, 2]), row(1, 9000, list(range(18)))]
    trace = read_trace(lines(tmp_path / "t", *rows))
    assert [one.prompt_tokens for one in trace.within(2000).requests] == [1000]
    assert trace.within(2000).num_left_out == 1
    with pytest.raises(TraceError, match="hold more with --capacity"):
        trace.within(10)
