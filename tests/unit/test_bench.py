"""The figures of `warmroute bench`, and the constants that it fits."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmroute.policies.errors import PolicyError
from warmroute.proxy.bench.decisions import SIZES, decision_costs
from warmroute.proxy.bench.ingest import ingest_cost
from warmroute.proxy.bench.overhead import Overhead
from warmroute.proxy.bench.relaying import RelayCost
from warmroute.proxy.bench.step_fit import DecodeTime, PrefillTime, fit_steps
from warmroute.proxy.bench.stream_client import Timed
from warmroute.proxy.cli import main

CONSTANTS = (6.5e-3, 29e-6, 0.95e-9, 25e-6, 46e-9, 2e-3)


def times_of(
    constants: tuple[float, ...], most: int = 16_384
) -> tuple[list[PrefillTime], list[DecodeTime]]:
    """Return what an engine with these constants would take; 8,192 tokens a step."""
    step, token, pair, sequence, context, request = constants
    prefills = []
    length = 128
    while length <= most:
        steps = -(-length // 8192)
        seconds = request + steps * (step + sequence) + token * length
        seconds += pair * length * (length + 1) / 2
        prefills.append(PrefillTime(length, seconds))
        length *= 2
    decodes = [
        DecodeTime(batch, tokens, step + batch * (sequence + context * tokens))
        for batch in (1, 2, 4, 8, 16)
        for tokens in (150.0, 2000.0, 16_000.0)
    ]
    return prefills, decodes


class TestStepFit:
    def test_an_h100_is_found_again(self) -> None:
        found = fit_steps(*times_of(CONSTANTS), 8192)
        told = (
            *(found.step_s, found.prefill_s_per_token, found.attention_s_per_pair),
            *(found.sequence_s, found.context_s_per_token, found.request_s),
        )
        assert told == pytest.approx(CONSTANTS, rel=0.02)
        assert found.error < 1e-3

    @given(st.tuples(*[st.floats(0.2, 5.0)] * 6), st.randoms(use_true_random=False))
    @settings(max_examples=30)
    def test_noise_makes_no_constant_negative_and_predicts_the_times(
        self, factors: tuple[float, ...], rng: Any
    ) -> None:
        constants = tuple(f * c for f, c in zip(factors, CONSTANTS, strict=True))
        prefills, decodes = times_of(constants)
        noisy = [
            PrefillTime(one.tokens, one.seconds * rng.uniform(0.9, 1.1))
            for one in prefills
        ]
        found = fit_steps(noisy, decodes, 8192)
        assert found.step_s > 0
        assert min(found.prefill_s_per_token, found.attention_s_per_pair) >= 0
        assert min(found.sequence_s, found.context_s_per_token) >= 0
        assert found.error < 0.1


class TestTimed:
    def test_several_tokens_in_an_event_are_weighed(self) -> None:
        timed = Timed(0.0, [1.0, 2.0, 3.0, 4.0], num_tokens=8)
        assert timed.ttft_s == 1.0
        assert timed.tokens_within(1.0, 3.0) == 4.0


class TestOverhead:
    def test_a_decision_keeps_to_its_bound(self) -> None:
        """At most 30 us and 1 us a backend; three times that on a busy machine."""
        costs = decision_costs("expected_ttft", 3)
        assert [one.backends for one in costs] == list(SIZES)
        for one in costs:
            assert one.allowed_us == 30 + one.backends
            assert 0 < one.us < 3 * one.allowed_us

    def test_an_unknown_policy_is_told(self) -> None:
        with pytest.raises(PolicyError, match="unknown policy 'nobody'"):
            decision_costs("nobody", 1)

    def test_the_table_and_the_json_say_the_same(self) -> None:
        found = Overhead(
            "random", decision_costs("random", 1), ingest_cost(1), RelayCost(30.0, 10.0)
        )
        told = found.as_object()
        assert told["request"] == {"us": 30.0, "bare_relay_us": 10.0, "ratio": 3.0}
        assert told["index_block"]["ratio"] > 0
        assert json.loads(json.dumps(told)) == told
        text = found.as_text()
        assert "decision of random" in text
        for one in told["decision"]:
            assert f"{one['backends']} backends" in text


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "fault"),
        [
            (["--calibrate", "http://127.0.0.1:1"], "needs --model"),
            (["--calibrate", "127.0.0.1:1", "--model", "m"], "is no URL"),
            (
                [
                    *("--calibrate", "http://127.0.0.1:1", "--model", "m"),
                    *("--api-key-env", "NOT_SET_ANYWHERE"),
                ],
                "NOT_SET_ANYWHERE is not set",
            ),
            (["--policy", "nobody"], "unknown policy"),
            (["--model", "m"], "--model is for an engine"),
            (["--kv-tokens", "9"], "--kv-tokens is for an engine"),
            (["--max-batch", "9"], "--max-batch is for an engine"),
            (
                [
                    *("--calibrate", "http://127.0.0.1:9", "--model", "m"),
                    *("--output", "no/such/folder/engine.json"),
                ],
                "--output: no/such/folder/engine.json cannot be written: No such file",
            ),
        ],
    )
    def test_bad_usage_is_2(
        self, arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["bench", *arguments]) == 2
        assert fault in capsys.readouterr().err

    def test_an_engine_that_is_not_there_is_1(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        url = "http://127.0.0.1:9"
        output = tmp_path / "engine.json"
        flags = ["--calibrate", url, "--model", "m", "--output", str(output)]
        assert main(["bench", *flags]) == 1
        told = capsys.readouterr().err
        assert f"{url}/v1/completions cannot be reached: " in told
        assert "Error(" not in told
        assert not output.exists()

    @pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
    def test_counts_are_whole_and_positive(
        self, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["bench", "--reps", text])
        assert ended.value.code == 2
        assert "a whole number from 1 to 1000)" in capsys.readouterr().err
