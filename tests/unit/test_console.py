"""What the terminal shows: sentences, tables, and the page that moves."""

from typing import Any

import msgspec
import pytest

from warmroute.policies.errors import BackendUnavailable, ConfigError
from warmroute.proxy.cli import main
from warmroute.proxy.console.admin_client import AdminClient
from warmroute.proxy.console.answers import Decision, State
from warmroute.proxy.console.explanation import explain
from warmroute.proxy.console.overview import overview
from warmroute.proxy.console.table import printable, seconds, size, table
from warmroute.proxy.console.watch import Watch

Capture = pytest.CaptureFixture[str]


def candidate(name: str, cached: int, total_s: float | None, **other: Any) -> Any:
    cost = {"wait_s": 0.0, "miss_s": total_s, "decode_s": 0.0, "total_s": total_s}
    tiers = {"gpu": cached, "host": 0, "disk": 0}
    facts = {"state": "up", "view": "events", "matched_tokens": tiers, "cost": cost}
    return {"backend": name, **facts, **other}


def decision(**changes: Any) -> Decision:
    outcome = {
        "status": 200,
        "error": None,
        "cached_tokens": 1024,
        "predicted_tokens": 1024,
        "difference": None,
        "output_tokens": 64,
        "ttft_s": 0.12,
        "duration_s": 1.5,
        "tokens": {"hit": 1024, "cold": 76, "evicted": 0},
        **changes.pop("outcome", {}),
    }
    facts = {
        "request_id": "r-17",
        "time": 1790000000.5,
        "model": "smol",
        "grade": "exact",
        "prompt_tokens": 1100,
        "policy": "expected_ttft",
        "chosen": "a",
        "reason": "prefix",
        "candidates": [candidate("a", 1024, 0.12), candidate("b", 0, 0.9)],
        "attempts": 1,
        "outcome": outcome,
        **changes,
    }
    return msgspec.convert(facts, Decision)


def sentence(one: Decision) -> str:
    return explain(one).splitlines()[1]


class TestWhy:
    def test_says_it_in_plain_words(self) -> None:
        assert sentence(decision()) == (
            "sent to a because 1,024 of 1,100 prompt tokens were cached there; "
            "b would have had to compute all; expected cost 0.12 s against 0.90 s; "
            "the engine reported 1,024: as predicted"
        )

    def test_shows_every_backend_and_the_outcome(self) -> None:
        down = candidate("c", 0, None, state="down", view="none")
        one = decision(candidates=[candidate("a", 1024, 0.12), down])
        heads, mine, other, blank, end = explain(one).splitlines()[3:]
        assert heads.split() == [
            *("backend", "state", "view", "cached", "to", "compute"),
            *("wait", "miss", "decode", "total"),
        ]
        assert mine.split("  ")[0] == ">"
        times = ["0", "s", "0.12", "s", "0", "s", "0.12", "s"]
        assert mine.split()[1:] == ["a", "up", "events", "1,024", "76", *times]
        assert other.split()[:5] == ["c", "down", "none", "-", "-"]
        assert not blank
        assert end == (
            "outcome: 200; first token after 0.12 s; 64 tokens in 1.5 s; "
            "prompt tokens: 1,024 hit, 76 cold"
        )

    @pytest.mark.parametrize(
        ("outcome", "expected"),
        [
            (
                {"cached_tokens": 512, "difference": "evicted"},
                "the engine reported 512: 512 fewer than predicted "
                "(evicted after the decision)",
            ),
            (
                {"cached_tokens": 1088},
                "the engine reported 1,088: 64 more than predicted",
            ),
            (
                {"cached_tokens": None},
                "the engine did not report what it had cached",
            ),
        ],
    )
    def test_says_whether_the_prediction_held(
        self, outcome: dict[str, Any], expected: str
    ) -> None:
        assert sentence(decision(outcome=outcome)).endswith(f"; {expected}")

    @pytest.mark.parametrize(
        ("outcome", "expected"),
        [
            ({"status": 400}, "the engine refused it: 400"),
            ({"status": 404}, "the engine refused it: 404"),
            ({"status": 500}, "the engine failed: 500"),
            ({"status": 302}, "the engine answered 302"),
            (
                {"status": 502, "error": "upstream_unreachable"},
                "no engine gave a whole answer",
            ),
            ({"status": 499, "error": "client_gone"}, "its client left first"),
            ({"status": 499, "error": "client_timeout"}, "its client left first"),
        ],
    )
    def test_tells_a_refusal_of_the_engine_from_no_answer(
        self, outcome: dict[str, Any], expected: str
    ) -> None:
        """Where no token was served, the status and our own code tell why."""
        unserved = {"cached_tokens": None, "tokens": None, **outcome}
        assert sentence(decision(outcome=unserved)).endswith(f"; {expected}")

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"reason": "load"}, "because it had the least to do; 1,024 of 1,100 "),
            ({"reason": "session"}, "because its session is at home there"),
            ({"attempts": 2}, "at attempt 2, after a backend had given no answer"),
            ({"reason": "mine"}, "(mine); 1,024 of"),
        ],
    )
    def test_knows_the_reasons(self, changes: dict[str, Any], expected: str) -> None:
        assert sentence(decision(**changes)).startswith(f"sent to a {expected}")

    def test_compares_with_the_cheapest_other_one(self) -> None:
        rivals = [candidate("b", 0, 0.9), candidate("c", 600, 0.5)]
        one = decision(candidates=[*rivals, candidate("a", 1024, 0.12)])
        assert (
            "c would have had to compute 500; expected cost 0.12 s against 0.50 s"
            in (sentence(one))
        )

    def test_one_that_could_not_be_chosen_is_no_rival(self) -> None:
        """It is up, but does not serve the model, and has no price."""
        one = decision(candidates=[candidate("a", 0, 0.12), candidate("b", 0, None)])
        assert "b would have" not in sentence(one)
        row = explain(one).splitlines()[5]
        assert row.split()[:5] == ["b", "up", "events", "-", "-"]

    def test_without_prices_only_a_match_proves_that_one_could_be_chosen(self) -> None:
        rivals = [candidate("b", 0, None), candidate("c", 600, None)]
        one = decision(candidates=[candidate("a", 1024, None), *rivals])
        assert "c would have had to compute 500" in sentence(one)
        idle = decision(candidates=[candidate("a", 0, None), rivals[0]])
        assert "b would have" not in sentence(idle)
        assert explain(idle).splitlines()[4].split()[4:6] == ["0", "1,100"]

    def test_a_policy_that_prices_nothing_has_no_prices(self) -> None:
        unpriced = [candidate("a", 1024, None), candidate("b", 0, None)]
        assert "expected" not in explain(decision(candidates=unpriced))

    def test_a_request_that_runs_has_no_outcome_yet(self) -> None:
        text = explain(msgspec.structs.replace(decision(), outcome=None))
        assert "it still runs" in text
        assert text.endswith("outcome: none yet")

    def test_tells_what_the_shadow_would_have_done(self) -> None:
        shadow = {"policy": "round_robin", "chosen": "b", "matched_tokens": 0}
        text = explain(decision(shadow=shadow))
        assert text.endswith("round_robin would have sent it to b instead")

    def test_a_request_that_was_never_sent_names_no_backend(self) -> None:
        end = {"status": 429, "error": "queue_timeout", "duration_s": 10.0}
        text = explain(decision(chosen=None, outcome=end))
        assert "sent nowhere: the queue refused it" in text
        assert ">" not in text
        assert "outcome: 429; queue_timeout" in text

    def test_no_escape_reaches_the_terminal(self) -> None:
        """Clients choose model names and ids."""
        evil = "\x1b]0;owned\x07"
        text = explain(decision(model=evil, request_id=evil, chosen=evil))
        assert "\x1b" not in text
        assert "\x07" not in text


def state(**changes: Any) -> State:
    facts = {
        "version": "0.1.0",
        "policy": "expected_ttft",
        "uptime_s": 81.2,
        "backends": [
            {
                "name": "a",
                "engine": "vllm",
                "state": "up",
                "view": {"source": "events", "blocks": 5210, "lag_s": 0.004},
                "load": {"requests": 3, "prefill_tokens": 2100, "decodes": 2},
                "learned": {"prefill_tokens_per_s": 9120.5, "itl_s": 0.021},
                "kv": {},
            },
            {"name": "b", "engine": "sglang", "state": "down"},
        ],
        "index": {"bytes": 1841216, "cap_bytes": 268435456, "blocks": 9831},
        "tokens": {
            "prompt": 10000,
            "hit": 7600,
            "cold": 2170,
            "evicted": 130,
            "elsewhere": 80,
            "unpredicted": 20,
        },
        "paid_twice_ratio": 0.023,
        **changes,
    }
    return msgspec.convert(facts, State)


class TestOverview:
    def test_begins_with_what_is_paid_twice(self) -> None:
        lines = overview(state()).splitlines()
        assert lines[0] == "paid twice  2.3 %  (230 of 10,000 prompt tokens)"
        assert " ".join(lines[1].split()) == (
            "hit 76.0 % cold 21.7 % evicted 1.3 % elsewhere 0.8 % unpredicted 0.2 %"
        )

    def test_has_a_row_a_backend(self) -> None:
        first, second = (line.split() for line in overview(state()).splitlines()[4:6])
        assert first == [
            *("a", "vllm", "up", "events", "4.0", "ms", "5,210", "3", "2", "2,100"),
            *("9,120", "21.0", "ms"),
        ]
        assert second == [
            *("b", "sglang", "down", "none", "-", "-", "0", "0", "0", "-", "-"),
        ]

    def test_an_open_breaker_is_told_beside_the_state(self) -> None:
        backend = {"name": "a", "engine": "vllm", "state": "up"}
        closed = overview(state(backends=[{**backend, "breaker": "closed"}]))
        text = overview(state(backends=[{**backend, "breaker": "half_open"}]))
        assert "breaker" not in closed
        assert "up, breaker half open" in text

    def test_names_what_breaks_prefixes(self) -> None:
        killer = {"sentence": "a timestamp at token 12", "example": "xxxx: 9999"}
        text = overview(state(cache_killers=[{**killer, "kind": "timestamp"}]))
        assert text.endswith(
            "what breaks prefixes:\n  a timestamp at token 12\n    xxxx: 9999"
        )

    def test_needs_no_traffic(self) -> None:
        assert overview(state(tokens={}, paid_twice_ratio=0.0)).startswith(
            "paid twice  0.0 %  (0 of 0 prompt tokens)"
        )


class TestTable:
    def test_numbers_end_flush(self) -> None:
        assert table(("name", "n"), [("a", "1"), ("long", "22")]) == (
            "name   n\na      1\nlong  22"
        )

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            *((None, "-"), (0.0, "0 s"), (0.0042, "4.2 ms"), (0.123, "0.12 s")),
            *((1.26, "1.3 s"), (81.2, "81 s")),
        ],
    )
    def test_times_have_the_digits_that_matter(
        self, value: float | None, text: str
    ) -> None:
        assert seconds(value) == text

    def test_sizes_have_units(self) -> None:
        assert [size(0), size(1023), size(1536), size(2**28)] == [
            *("0 B", "1023 B", "1.5 KiB", "256.0 MiB"),
        ]

    def test_long_text_is_cut(self) -> None:
        assert printable("x" * 99, 10) == "xxxxxxx..."


class FakeProxy:
    """Answers with one state after the other, or with an error."""

    def __init__(self, *answers: State | Exception) -> None:
        self.answers = list(answers)

    def read(self, path: str, kind: type[State]) -> State:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeScreen:
    """Keeps the pages, and presses keys."""

    def __init__(self, keys: str) -> None:
        self.keys = list(keys)
        self.pages: list[str] = []

    def draw(self, text: str) -> None:
        self.pages.append(text)

    def key(self, timeout_s: float) -> str:
        return self.keys.pop(0).strip()


class TestWatch:
    def test_shows_rates_until_q(self) -> None:
        """A blank stands for a second without a key."""
        later = state(
            tokens={"prompt": 14000, "hit": 10000, "cold": 3700, "evicted": 300}
        )
        times = iter([0.0, 2.0])
        screen = FakeScreen(" Q")
        Watch(FakeProxy(later), screen, lambda: next(times)).run(state())
        assert len(screen.pages) == 2
        assert "2,000 prompt tokens/s, of which 35 paid twice" in screen.pages[1]

    def test_a_lost_connection_shows_and_heals(self) -> None:
        """The last page stays, with the reason."""
        proxy = FakeProxy(BackendUnavailable("no answer\x1b"), state())
        screen = FakeScreen("  q")
        Watch(proxy, screen).run(state())
        assert "not connected, trying again: no answer?" in screen.pages[1]
        assert "paid twice" in screen.pages[1]
        assert "not connected" not in screen.pages[2]


class TestCommands:
    @pytest.mark.parametrize("command", [["why", "--last"], ["stats"], ["top"]])
    def test_nobody_there_is_told_with_a_remedy(
        self, command: list[str], capsys: Capture
    ) -> None:
        """Port 9 of loopback refuses."""
        assert main([*command, "--admin", "http://127.0.0.1:9"]) == 1
        told = capsys.readouterr().err
        assert "no answer from the admin port at http://127.0.0.1:9" in told
        assert "--admin URL" in told

    @pytest.mark.parametrize(
        ("url", "base"),
        [
            ("http://h:9090/api/state?x=1", "http://h:9090"),
            ("https://h/metrics", "https://h"),
            ("h:9090/", "http://h:9090"),
            ("http://h/warmroute/api/decisions/api", "http://h/warmroute"),
            ("http://h:9090/#/prefixes", "http://h:9090"),
        ],
    )
    def test_a_path_that_was_copied_along_is_passed_over(
        self, url: str, base: str
    ) -> None:
        """A prefix in front of it stays: a reverse proxy may have put it there."""
        assert AdminClient(url, {}).url == base

    @pytest.mark.parametrize(
        ("given", "variable", "url"),
        [
            (None, None, "http://127.0.0.1:9090"),
            (None, "10.0.0.5:9191", "http://10.0.0.5:9191"),
            (None, "https://proxy/warm", "https://proxy/warm"),
            (None, "0.0.0.0:9191", "http://127.0.0.1:9191"),
            (None, "[::]:9191", "http://127.0.0.1:9191"),
            (":9191", "10.0.0.5:1", "http://127.0.0.1:9191"),
            ("h:9", "10.0.0.5:1", "http://h:9"),
        ],
    )
    def test_the_variable_means_what_it_means_to_the_proxy(
        self, given: str | None, variable: str | None, url: str
    ) -> None:
        """The flag wins; whoever listens everywhere is asked on this machine."""
        environ = {} if variable is None else {"WARMROUTE_ADMIN": variable}
        assert AdminClient(given, environ).url == url

    def test_a_variable_that_is_no_address_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"^WARMROUTE_ADMIN: 'a:b' is no URL"):
            AdminClient(None, {"WARMROUTE_ADMIN": "a:b"})

    @pytest.mark.parametrize("command", [["why", "--last"], ["stats"], ["kv", "flush"]])
    def test_every_command_asks_where_the_variable_says(
        self,
        command: list[str],
        capsys: Capture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("WARMROUTE_ADMIN", "127.0.0.1:9")
        assert main(command) == 1
        assert "admin port at http://127.0.0.1:9:" in capsys.readouterr().err

    @pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999", "//"])
    def test_what_is_no_url_is_bad_usage(self, url: str, capsys: Capture) -> None:
        assert main(["stats", "--admin", url]) == 2
        assert "is no URL" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [[], [""], ["r-1", "--last"]])
    def test_why_wants_one_request(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["why", *arguments])
        assert ended.value.code == 2

    def test_a_token_that_no_header_can_carry_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="WARMROUTE_ADMIN_TOKEN") as refused:
            AdminClient("http://h", {"WARMROUTE_ADMIN_TOKEN": "a\nsecret"})
        assert "secret" not in str(refused.value)
