"""Measure what it takes to copy blocks of a running sequence, and to bring them back.

    python tests/bench/vllm_restore.py [--rounds 10] [--block 32] [--worker apart]
    python tests/bench/vllm_restore.py --first 12 [--worker apart]

SmolLM2-135M in a vLLM whose scheduler is inside this process, with one sequence of 896
tokens. In each round its budget has it give back all blocks but three, which are
copied to host memory in slices, and then `restore` brings them back. Printed are the
blocks and bytes, and for each call that copied, in either direction, how long it took:
it holds up the engine for so long. The worker is in this process, too, or with
``--worker apart`` in one of its own, as a server on CPU has it; then the calls that
bring blocks back contain what it takes to ask it, which is also printed alone. CPU time
is that of the thread that is measured, so it tells nothing about waiting for a worker.
The first budgets of an engine make its worker ready, once; ``--first`` measures only
that, by attention, in so many engines one after the other.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "01_two_vllm")]

from forced_vllm import BLOCK, CHILD, EXECUTORS, Engine, run  # noqa: E402
from timed_copies import Took  # noqa: E402

PROMPT, HELD = 896, 3
NAME = "bench"
CALLS = 500


def measure(engine: Engine, block: int, rounds: int) -> dict[str, Any]:
    from vllm import SamplingParams

    first, scored, tokens = Took(), Took(), HELD * block
    ask(engine, "budget", scored, method="attention", tokens=tokens)
    ask(engine, "budget", first, method="sinks", tokens=tokens, host_bytes=1 << 30)
    workers, back, asked = engine.model.collective_rpc, Took(), Took()
    workers("time_copies")
    steps = engine.model.llm_engine
    chance = random.Random(0)
    named = 0
    for _ in range(rounds):
        prompt = [chance.randrange(3, 40_000) for _ in range(PROMPT)]
        once = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
        steps.add_request(NAME, {"prompt_token_ids": prompt}, once)
        while num_given(engine) < PROMPT // block + 1 - HELD:
            steps.step()
        parts = ask(engine, "bring_back", back, request_id=NAME)
        named = parts[0]["named"]
        assert sum(part.get("changed", 0) for part in parts) == named
        steps.abort_request([NAME])
        steps.step()
        engine.model.reset_prefix_cache()
    call = asked.timing(engine.control._budgets.workers.collective_rpc)
    for _ in range(CALLS):
        call("do_nothing")
    return {
        "blocks": named,
        "bytes": engine.control._budgets.kept.block_bytes,
        "out": workers("times_of_copies")[0],
        "back": back.ms,
        "asked": asked.ms,
        "scored": scored.ms,
        "first": first.ms,
    }


def measure_first(engine: Engine, block: int) -> dict[str, Any]:
    scored = Took()
    ask(engine, "budget", scored, method="attention", tokens=HELD * block)
    return {"scored": scored.ms}


def num_given(engine: Engine) -> int:
    from warmroute.adapters.vllm.plugin.names import BUDGET

    return sum(getattr(one, BUDGET).num_given for one in engine.scheduler.running)


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
    engine = Engine(
        cases["model"],
        cases["blocks"],
        EXECUTORS[cases["worker"]],
        block_size=cases["block"],
        worker_extension_cls="timed_copies.TimedCopies",
    )
    if cases["measure"] == "first":
        found = measure_first(engine, cases["block"])
    else:
        found = measure(engine, cases["block"], cases["rounds"])
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
    parser.add_argument("--block", type=int, default=BLOCK, help="tokens a block")
    parser.add_argument("--worker", choices=EXECUTORS, default="here")
    parser.add_argument("--first", type=int, help="measure first budgets of so many")
    options = parser.parse_args()
    environment = ensure_environment()
    cases = {"model": str(ensure_smollm2(environment)), **vars(options)}
    with tempfile.TemporaryDirectory() as folder:
        site = link_package(Path(folder))
        blocks = 4 * PROMPT // options.block
        if options.first:
            times: list[tuple[float, float]] = []
            for number in range(options.first):
                some = run(environment, site, "first", blocks, cases)["scored"]
                print(f"{number + 1}: {max(some)[0]:.2f} ms", flush=True)
                times += some
            tell("the first budget by attention", times, options.first)
            return
        found = run(environment, site, "restore", blocks, cases)
    kib = found["bytes"] / 1024
    print(f"{found['blocks']} blocks of {kib:.0f} KiB, {options.rounds} times")
    for name, told, count in (
        ("out", "copying out", options.rounds),
        ("back", "bringing back", options.rounds),
        ("asked", "asking the worker for nothing", 1),
        ("scored", "the first budget by attention", 1),
        ("first", "the first budget with copies", 1),
    ):
        tell(told, found[name], count)


def tell(told: str, times: list[tuple[float, float]], count: int) -> None:
    wall, cpu = np.array(times).T
    print(
        f"{told}: {len(wall) / count:.1f} calls; ms a call {np.median(wall):.2f}, "
        f"at most {max(wall):.2f}; CPU {np.median(cpu):.2f}, at most {max(cpu):.2f}"
    )


if __name__ == "__main__":
    main()
