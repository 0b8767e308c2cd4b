"""``warmroute replay``: what is printed where, and the exit codes."""

import json
from pathlib import Path

import pytest
from unit.replay_rig import row, write_trace

from warmroute.proxy.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [row(1000 * at, 1025, [1, 2, 100 + at], 10) for at in range(6)]
    return str(write_trace(tmp_path / "trace.jsonl", *rows))


def test_json_is_one_object_with_all_figures(trace: str, capsys: Capture) -> None:
    """Two engines take turns, so each computes the prompt once and one token then."""
    flags = ["--backends", "2", "--capacity", "2k", "--prefill-rate", "1k", "--json"]
    assert main(["replay", trace, *flags, "--policy", "round_robin,random"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    shown = json.loads(printed.out)
    assert list(shown) == ["trace", "fleet", "seeds", "policies", "oracles"]
    assert shown["trace"] == {
        "requests": 6,
        "prompt_tokens": 6150,
        "block_size": 512,
        "duration_s": 5.0,
    }
    assert shown["fleet"] == {
        "backends": 2,
        "capacity_tokens": 2000,
        "prefill_tokens_per_s": 1000.0,
    }
    assert [one["policy"] for one in shown["policies"]] == ["round_robin", "random"]
    assert [one["policy"] for one in shown["oracles"]] == [
        "oracle_pooled",
        "oracle_belady",
        "oracle_infinite",
    ]
    first = shown["policies"][0]
    assert first.pop("ttft_s") == pytest.approx(
        {"mean": 0.3423333, "p50": 0.001, "p90": 1.025, "p99": 1.025}
    )
    assert first.pop("tpot_s") == pytest.approx({"mean": 0.03, "p99": 0.03})
    e2e = {"mean": 0.6423333, "p99": 1.325}
    assert first.pop("e2e_s") == pytest.approx(e2e)
    assert first.pop("hit_ratio") == pytest.approx(4096 / 6150)
    assert first.pop("paid_twice_ratio") == pytest.approx(1024 / 6150)
    assert first == {
        "policy": "round_robin",
        "requests": 6,
        "imbalance": 1.0,
        "goodput": 1.0,
        "backends": [
            {"name": "engine-0", "requests": 3, "prefill_tokens": 1027},
            {"name": "engine-1", "requests": 3, "prefill_tokens": 1027},
        ],
    }


def test_several_seeds_have_an_interval(trace: str, capsys: Capture) -> None:
    flags = ["--seeds", "3", "--jitter", "2", "--policy", "random", "--json"]
    flags += ["--backends", "2", "--prefill-rate", "1k"]
    assert main(["replay", trace, *flags]) == 0
    first = capsys.readouterr().out
    assert json.loads(first)["policies"][0]["ttft_s"]["mean_ci95"] > 0
    assert main(["replay", trace, *flags]) == 0
    assert capsys.readouterr().out == first


def test_the_table_has_a_line_a_policy_and_the_oracles(
    trace: str, capsys: Capture
) -> None:
    assert main(["replay", trace, "--seeds", "2", "--speed", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("trace.jsonl: 6 requests, 6150 prompt tokens, 5 s at speed 2")
    assert lines[1].endswith("8000 tokens/s, offered load without a cache 0.04")
    names = [line.split()[0] for line in lines[3:10]]
    assert names == [
        *("policy", "round_robin", "least_requests", "expected_ttft"),
        *("oracle_pooled", "oracle_belady", "oracle_infinite"),
    ]
    assert lines[-1] == "means over 2 seeds, +- is 95 % of them"


def test_one_request_has_no_load_to_show(tmp_path: Path, capsys: Capture) -> None:
    path = write_trace(tmp_path / "t.jsonl", row(7, 1, []))
    assert main(["replay", str(path), "--policy", "random"]) == 0
    assert "offered" not in capsys.readouterr().out


def test_progress_is_shown_on_a_terminal_alone(
    trace: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["replay", trace, "--json"]) == 0
    printed = capsys.readouterr()
    assert "replaying" in printed.err
    json.loads(printed.out)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--policy", "nope"], "--policy: unknown policy 'nope' (known: "),
        (["--policy", "random,"], "--policy: unknown policy ''"),
        (["--policy", "expected_tft"], "did you mean 'expected_ttft'"),
    ],
)
def test_unknown_policy_is_2(
    flags: list[str], complaint: str, trace: str, capsys: Capture
) -> None:
    assert main(["replay", trace, *flags]) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--backends", "0"], "'0' (allowed: numbers from 1, at most 4096)"),
        (["--backends", "1.5"], "'1.5' (allowed: whole numbers)"),
        (["--capacity", "-1"], "'-1' (allowed: numbers from 0"),
        (["--capacity", "M"], "'M' (allowed"),
        (["--prefill-rate", "0"], "'0' (allowed: numbers above 0, at most 1e+09)"),
        (["--prefill-rate", "nan"], "'nan' (allowed"),
        (["--speed", "inf"], "'inf' (allowed"),
        (["--jitter", ""], "'' (allowed: numbers from 0"),
        (["--seeds", "x"], "'x' (allowed: numbers from 1, at most 1000)"),
        (["--engine-model", "steam"], "invalid choice: 'steam'"),
    ],
)
def test_bad_option_is_2(
    flags: list[str], complaint: str, trace: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["replay", trace, *flags])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_bad_trace_is_2_with_its_line(tmp_path: Path, capsys: Capture) -> None:
    path = write_trace(tmp_path / "t.jsonl", row(0, 1, []), row(0, -1, []))
    assert main(["replay", str(path), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"{path}:2: input_length is -1")
    assert printed.out == ""


def test_help_shows_an_example(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    examples = capsys.readouterr().out.partition("examples:")[2]
    assert "  warmroute replay" in examples
    assert "exit codes:" in examples


BATCHING = ["--engine-model", "batching"]


def test_batching_shows_its_constants_and_what_is_needed(
    trace: str, capsys: Capture, tmp_path: Path
) -> None:
    """One engine is enough for six prompts, and eight are there."""
    constants = tmp_path / "engine.json"
    constants.write_text(json.dumps({"step_s": 0.01, "kv_tokens": 50_000}))
    flags = [*BATCHING, "--constants", str(constants), "--constant", "sequence_s=1e-5"]
    flags += ["--policy", "expected_ttft", "--what-if", "0.9", "--json"]
    assert main(["replay", trace, *flags]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["fleet"]["engine_model"] == "batching"
    assert shown["fleet"]["capacity_tokens"] == 50_000
    assert shown["fleet"]["constants"]["step_s"] == 0.01
    assert shown["fleet"]["constants"]["sequence_s"] == 1e-5
    assert shown["what_if"]["sentence"] == "you need 1, not 8"
    assert [one["capacity_tokens"] for one in shown["what_if"]["needs"]] == [
        *(25_000, 50_000, 100_000, 200_000)
    ]
    assert shown["policies"][0]["tpot_s"]["mean"] > 0.01


def test_the_report_is_one_page_that_asks_for_nothing(
    trace: str, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    flags = [*BATCHING, "--policy", "random,expected_ttft", "--report", str(path)]
    assert main(["replay", trace, *flags]) == 0
    shown = path.read_text()
    assert shown.count("<svg") == shown.count("</svg>") == 4
    assert shown.count("expected_ttft") > 4
    for asking in ("http:", "https:", "src=", "href=", "<script", "url(", "@import"):
        assert asking not in shown
    assert "nan" not in shown
    assert "TPOT ms" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_2(
    trace: str, capsys: Capture, tmp_path: Path
) -> None:
    assert main(["replay", trace, "--report", str(tmp_path / "no" / "r.html")]) == 2
    assert "--report: " in capsys.readouterr().err


def test_a_made_load_needs_no_file(capsys: Capture) -> None:
    flags = [*BATCHING, "--policy", "random", "--view", "delay=1"]
    assert main(["replay", "rag:requests=40", *flags]) == 0
    assert "view of the caches: delay=1" in capsys.readouterr().out


def test_slow_engines_are_named_in_both_models(trace: str, capsys: Capture) -> None:
    for model in ("fifo", "batching"):
        flags = ["--engine-model", model, "--slow", "engine-1=2", "--misjudge"]
        assert main(["replay", trace, *flags, "engine-0=0.5", "--backends", "2"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            ["--slow", "engine-9=2"],
            "--slow: unknown engine 'engine-9' (known: engine-0",
        ),
        (["--die", "engine-0@5"], "--die: not known to --engine-model fifo"),
        (["--mislearn", "engine-0=2"], "--mislearn: not known to --engine-model fifo"),
        (["--constant", "step_s=1"], "--constant: not known to --engine-model fifo"),
        ([*BATCHING, "--prefill-rate", "1k"], "--prefill-rate: not known to"),
        ([*BATCHING, "--constant", "nope=1"], "unknown constant 'nope'"),
        ([*BATCHING, "--constant", "kv_tokens=0.5"], "--constant: Expected `int` >= 1"),
        ([*BATCHING, "--constants", "/nowhere"], "/nowhere: cannot be read"),
        ([*BATCHING, "--capacity", "500"], "every request is longer than the 500"),
        ([*BATCHING, "--backends", "1", "--die", "engine-0@1"], "every engine dies"),
        (["--view", "blurred"], "--view: no grade 'blurred'"),
        (["--view", "delay=x"], "--view: no grade 'delay=x'"),
        (["--view", "events-loss=2"], "--view: no grade 'events-loss=2'"),
    ],
)
def test_what_makes_no_fleet_is_2(
    flags: list[str], complaint: str, trace: str, capsys: Capture
) -> None:
    assert main(["replay", trace, *flags]) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.out == ""


def test_constants_that_are_none_are_named(
    trace: str, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "engine.json"
    path.write_text('{"steps": 1}')
    assert main(["replay", trace, *BATCHING, "--constants", str(path)]) == 2
    assert "known constants: step_s, prefill_s_per_token" in capsys.readouterr().err
