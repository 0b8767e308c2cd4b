"""The bench of workloads plays what it says, and its fake engine keeps to the model."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.streams import Streams

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

import loads  # noqa: E402
import predicted  # noqa: E402
import timed_engine  # noqa: E402

CONSTANTS, REQUEST_S = predicted.read_constants(FOLDER / "timed_engine.json")
POLICIES = ["round_robin", "expected_ttft"]


def rows(start: int, count: int, context: int) -> SequenceRows:
    return SequenceRows(start, count, np.zeros(1, np.int32), context)


def batch(*sequences: SequenceRows) -> Batch:
    none = np.zeros(0, np.int32)
    return Batch(none, none, none.astype(np.int64), list(sequences), none)


def test_a_timed_step_costs_what_the_batching_model_says() -> None:
    """A chunk of 300 behind 500, and two streams with 900 and 100 tokens."""
    known = json.loads((FOLDER / "timed_engine.json").read_text())
    model = timed_engine.load_timed(known).model
    assert isinstance(model, timed_engine.TimedModel)
    seconds = model.step_s(batch(rows(0, 1, 900), rows(1, 1, 100), rows(2, 300, 800)))
    streams = Streams(CONSTANTS)
    expected = streams.step_s() + 3 * CONSTANTS.sequence_s
    expected += 1000 * CONSTANTS.context_s_per_token
    expected += CONSTANTS.prefill_s(300, 500)
    assert seconds == pytest.approx(expected)


@pytest.mark.parametrize("name", loads.LOADS)
def test_prompts_share_the_system_prompt(name: str) -> None:
    """All of them begin with it, and the same seed makes the same load."""
    load = loads.make_load(name, loads.Words(50_000), 0.2, 1)
    prompts = [turn.prompt for session in load.sessions for turn in session]
    assert len({prompt[: load.system_tokens] for prompt in prompts}) == 1
    assert len(set(prompts)) == load.num_requests
    assert load == loads.make_load(name, loads.Words(50_000), 0.2, 1)


def test_turns_of_a_session_grow() -> None:
    """Each prompt of an agent or a chat begins with the one before it."""
    for name in ("chat", "agents"):
        for session in loads.make_load(name, loads.Words(50_000), 0.2, 1).sessions:
            for one, two in pairwise(session):
                assert two.prompt[: len(one.prompt)] == one.prompt


def test_the_prediction_serves_every_turn() -> None:
    """With all memory there is, only what nobody has seen yet is computed."""
    load = loads.make_load("agents", loads.Words(50_000), 0.2, 1)
    constants = EngineConstants(kv_tokens=10**9, step_s=0.01)
    told = predicted.from_load(load, POLICIES, constants, 0.5)
    assert told["expected_ttft"]["hit_ratio"] > told["round_robin"]["hit_ratio"] > 0.5
    assert all(one["ttft_mean_s"] > 0.5 for one in told.values())


def test_it_runs_with_embedded_engines(tmp_path: Path) -> None:
    """A short load on three tiny models is answered whole, and predicted."""
    command: list[str | Path] = [
        sys.executable,
        FOLDER / "run.py",
        "--load",
        "rag",
        "--engine",
        "tiny",
    ]
    command += ["--size", "0.03", "--policy", "round_robin,expected_ttft", "--json"]
    command += ["--constants", FOLDER / "timed_engine.json", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    for policy in POLICIES:
        assert result["runs"][policy]["finished"] == 6
        assert 0 < result["measured"][policy]["hit_ratio"] < 1
    assert set(result["predicted"]) == {"the load", "access records of round_robin"}
