"""Measure what it takes to copy blocks of a running sequence, and to bring them back.

    python tests/bench/vllm_restore.py [--rounds 10]

SmolLM2-135M in a vLLM inside this process, worker and all, with one sequence of 896
tokens. In each round its budget has it give back all blocks but three, which are
copied to host memory in slices, and then `restore` brings them back. Printed are the
blocks and bytes, and for each call that copied, in either direction, how long it took:
it holds up the engine for so long. A server has its worker in another process, and
what asking it there takes is not in it.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "01_two_vllm")]

from forced_vllm import BLOCK, CHILD, Engine, run  # noqa: E402

PROMPT, HELD, BLOCKS = 896, 3, 100
NAME = "bench"


def measure(engine: Engine, rounds: int) -> dict[str, Any]:
    from vllm import SamplingParams

    from warmroute.adapters.vllm.plugin.copies import Copies

    ask(engine, "budget", method="sinks", tokens=HELD * BLOCK, host_bytes=1 << 30)
    out, back = Took(), Took()
    Copies._copy = out.timing(Copies._copy)  # type: ignore[method-assign]
    steps = engine.model.llm_engine
    chance = random.Random(0)
    named = 0
    for _ in range(rounds):
        tokens = [chance.randrange(3, 40_000) for _ in range(PROMPT)]
        once = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
        steps.add_request(NAME, {"prompt_token_ids": tokens}, once)
        while num_given(engine) < PROMPT // BLOCK + 1 - HELD:
            steps.step()
        parts = ask(engine, "bring_back", back, request_id=NAME)
        named = parts[0]["named"]
        assert sum(part.get("changed", 0) for part in parts) == named
        steps.abort_request([NAME])
        steps.step()
        engine.model.reset_prefix_cache()
    bytes_each = engine.control._budgets.kept.block_bytes
    return {"blocks": named, "bytes": bytes_each, "out": out.ms, "back": back.ms}


def num_given(engine: Engine) -> int:
    from warmroute.adapters.vllm.plugin.names import BUDGET

    return sum(getattr(one, BUDGET).num_given for one in engine.scheduler.running)


class Took:
    """Keep how long calls took: on the clock, and of the thread's CPU time."""

    def __init__(self) -> None:
        self.ms: list[tuple[float, float]] = []

    def timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter(), time.thread_time()
            answer = function(*arguments)
            ended = time.perf_counter(), time.thread_time()
            self.ms.append((1e3 * (ended[0] - begun[0]), 1e3 * (ended[1] - begun[1])))
            return answer

        return timed


def ask(
    engine: Engine, verb: str, took: Took | None = None, **fields: Any
) -> list[dict[str, Any]]:
    call = engine.control.call if took is None else took.timing(engine.control.call)
    answer = call(1, verb, fields)
    parts = list(answer.get("parts", ()))
    while not answer.get("done"):
        if "error" in answer:
            sys.exit(f"{verb}: {answer['error']}")
        answer = call(1, "", {})
        parts += answer.get("parts", ())
    return parts


def child() -> None:
    cases = json.load(sys.stdin)
    found = measure(Engine(cases["model"], cases["blocks"]), cases["rounds"])
    Path(cases["out"]).write_text(json.dumps(found))


def main() -> None:
    if CHILD in sys.argv:
        child()
        return
    from engines.vllm_plugin_rig import link_package
    from two_vllm.environment import ensure_environment
    from two_vllm.models import ensure_smollm2

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    environment = ensure_environment()
    cases = {"model": str(ensure_smollm2(environment)), "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        site = link_package(Path(folder))
        found = run(environment, site, "restore", BLOCKS, cases)
    kib = found["bytes"] / 1024
    print(f"{found['blocks']} blocks of {kib:.0f} KiB, {rounds} times")
    for name, told in (("out", "copying out"), ("back", "bringing back")):
        wall, cpu = np.array(found[name]).T
        print(
            f"{told}: {len(wall) / rounds:.1f} calls; ms a call {np.median(wall):.2f}, "
            f"at most {max(wall):.2f}; CPU {np.median(cpu):.2f}, at most {max(cpu):.2f}"
        )


if __name__ == "__main__":
    main()
