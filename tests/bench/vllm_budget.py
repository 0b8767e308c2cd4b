"""Measure what a budget of blocks costs and brings on vLLM, with SmolLM2-135M.

    python tests/bench/vllm_budget.py --data DIR [--texts 12] [--needles 24]
        [--part quality] [--worker apart]

Answers are forced token by token through real decode steps, so that every one of them
sees only the blocks held; vLLM tells the log-likelihood that it gave each. Arms differ
in the budget alone, share the cached prompt, and are compared item by item, with 95 %
intervals by the bootstrap:

- WikiText-2 (validation, CC BY-SA 3.0): 768 tokens of prompt, 48 forced.
- Key-value retrieval ("Lost in the Middle", MIT): 40 pairs, the question and the value
  forced. A needle is found if every token of its value was the likeliest one.
- The same four prompts with a budget that gives back one block, with one whose
  attention is looked at, and with none, in turn: what that costs a step.
- Twelve requests in a pool for five (the part ``speed``): how many run at once, and
  how long giving back holds up the engine. With ``--worker apart`` the worker is in a
  process of its own there, as a server on CPU has it, and is asked about attention
  across that border.

``asked later`` forces question and value, so that blocks go before it is asked;
``asked first`` has the question in the prompt. ``random`` gives back random blocks
instead of the oldest; no server offers it. The first token of an answer comes from the
prefill, which is whole; it is left out. The data are looked for in DIR:
wikitext2_valid.txt of pytorch/examples and lim_kv_retrieval_75.jsonl of
nelson-liu/lost-in-the-middle, plain or packed.

The first run makes the environment of vLLM (about 4 GB), as the example does.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [
    str(ROOT / "tests"),
    str(ROOT / "examples" / "01_two_vllm"),
    str(ROOT / "tests" / "bench" / "quality"),
]

from forced_vllm import (  # noqa: E402
    BLOCK,
    CHILD,
    EXECUTORS,
    Engine,
    Scores,
    run,
)

PROMPT, ANSWER = 768, 48
PAIRS, SHOWN = 40, 8
CROWD, LONG, SAID = 12, 192, 96
SMALL_POOL = 1 + 5 * (LONG + SAID) // BLOCK + 2
ROUNDS = 12
SHARES = ("50 %", "25 %")
CHOSEN = ("oldest", "random", "attention")
ARMS = {"full": None} | {
    f"{share} {chosen}": (int(share[:2]) / 100, chosen)
    for share in SHARES
    for chosen in CHOSEN
}
CROWDS = ("full", "50 % oldest", "25 % oldest", "25 % attention")
KINDS = ("text", "asked later", "asked first")


def quality(engine: Engine, cases: dict[str, Any]) -> dict[str, Any]:
    """Score texts and needles in every arm; a score is of an item's last tokens."""
    ids = engine.encode(cases["text"])
    step = (len(ids) - PROMPT - ANSWER) // cases["texts"]
    starts = [at * step for at in range(cases["texts"])]
    texts = [ids[at : at + PROMPT] for at in starts]
    ends = [ids[at + PROMPT : at + PROMPT + ANSWER] for at in starts]
    heads = [engine.encode(one["head"]) for one in cases["needles"]]
    asks = [engine.encode(one["ask"]) for one in cases["needles"]]
    values = [engine.encode(one["value"]) for one in cases["needles"]]
    later = [ask + value for ask, value in zip(asks, values, strict=True)]
    prompts = [head + ask[:-1] for head, ask in zip(heads, asks, strict=True)]
    first = [ask[-1:] + value for ask, value in zip(asks, values, strict=True)]
    lasts = [len(value) for value in values]
    found: dict[str, Any] = {}
    for name, budget in ARMS.items():
        engine.set(budget)
        found[name] = {
            "text": scored(engine.score(texts, ends), [ANSWER - 1] * len(texts)),
            "asked later": scored(engine.score(heads, later), lasts),
            "asked first": scored(engine.score(prompts, first), lasts),
        }
        print(name, flush=True)
    engine.set(None)
    return {"arms": found, "steps": steps(engine, ids)}


def scored(scores: Scores, lasts: list[int]) -> dict[str, Any]:
    tails = [
        (logs[-last:], best[-last:])
        for (logs, best), last in zip(scores, lasts, strict=True)
    ]
    return {
        "nats": [float(np.mean(logs)) for logs, _ in tails],
        "best": [best for _, best in tails],
        "found": [float(all(best)) for _, best in tails],
    }


def steps(engine: Engine, ids: list[int]) -> list[dict[str, float]]:
    """Time the steps of four sequences, in full, with a block skipped, and looking."""
    prompts = [ids[at * PROMPT : (at + 1) * PROMPT] for at in range(4)]
    answers = [ids[-2 * BLOCK :]] * 4
    kinds = {"full": None, "skip": (23 / 24, "oldest"), "look": (23 / 24, "attention")}
    found = []
    for at in range(-1, ROUNDS):
        taken = {}
        for name in sorted(kinds, key=lambda name: (at + list(kinds).index(name)) % 3):
            engine.set(kinds[name])
            begun = time.process_time()
            engine.force(prompts, answers)
            taken[name] = (time.process_time() - begun) / len(answers[0])
        found.append(taken)
    return found[1:]


def speed(engine: Engine, cases: dict[str, Any]) -> dict[str, Any]:
    """Fill the small pool, and see how long giving back holds up the engine."""
    took: list[tuple[float, float]] = []
    budgets = engine.control._budgets
    give_back = type(budgets).give_back

    def timed(one: Any) -> Any:
        begun = time.perf_counter(), time.thread_time()
        given = give_back(one)
        if given:
            ended = time.perf_counter(), time.thread_time()
            took.append((ended[0] - begun[0], ended[1] - begun[1]))
        return given

    type(budgets).give_back = timed
    ids = engine.encode(cases["text"])
    prompts = [ids[at * LONG : (at + 1) * LONG] for at in range(CROWD)]
    answers = [ids[-SAID:]] * CROWD
    crowds = {}
    for name in CROWDS:
        engine.set(ARMS[name])
        engine.model.reset_prefix_cache()
        took.clear()
        crowds[name] = crowd(engine, prompts, answers) | {"took": list(took)}
    return {"crowds": crowds}


def crowd(
    engine: Engine, prompts: list[list[int]], answers: list[list[int]]
) -> dict[str, float]:
    running: list[int] = []
    schedule = engine.scheduler.schedule

    def watch(*arguments: Any, **options: Any) -> Any:
        output = schedule(*arguments, **options)
        running.append(len(output.num_scheduled_tokens))
        return output

    engine.scheduler.schedule = watch
    begun = time.perf_counter()
    engine.force(prompts, answers)
    engine.scheduler.schedule = schedule
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    return {
        "seconds": time.perf_counter() - begun,
        "most": max(running),
        "mean": float(np.mean(running)),
        "steps": len(running),
    }


PARTS = {"quality": quality, "speed": speed}


def child() -> None:
    cases = json.load(sys.stdin)
    measure = PARTS[cases["measure"]]
    executor = EXECUTORS[cases["worker"]]
    found = measure(Engine(cases["model"], cases["blocks"], executor), cases)
    Path(cases["out"]).write_text(json.dumps(found))


def needles(records: Any, count: int) -> list[dict[str, str]]:
    chance = random.Random(0)
    cases = []
    for record in islice(records, count):
        key, value = record["key"], record["value"]
        pairs = [one for one in record["ordered_kv_records"] if one[0] != key]
        pairs.insert(chance.randrange(PAIRS), [key, value])
        lines = "".join(
            f'"{one[:SHOWN]}": "{other[:SHOWN]}"\n' for one, other in pairs[:PAIRS]
        )
        ask = f'"{key[:SHOWN]}": "'
        cases.append({"head": lines, "ask": ask, "value": value[:SHOWN]})
    return cases


def show_quality(found: dict[str, Any]) -> None:
    full = found["full"]
    for kind in KINDS:
        print(f"| {kind}: blocks held | nats/token | like full | all the likeliest |")
        for name, arm in found.items():
            one, other = arm[kind], full[kind]
            same = [
                float(np.mean(np.equal(*pair)))
                for pair in zip(one["best"], other["best"], strict=True)
            ]
            print(
                f"| {name} | {np.mean(one['nats']):.3f} ({paired(one, other, 'nats')}) "
                f"| {np.mean(same):.3f} | {np.mean(one['found']):.2f} |"
            )
    for share, kind in product(SHARES, KINDS):
        ours = found[f"{share} attention"][kind]
        for name in ("oldest", "random"):
            theirs = found[f"{share} {name}"][kind]
            print(
                f"{share} {kind}: attention against {name}: "
                f"{paired(ours, theirs, 'nats')} nats, "
                f"{paired(ours, theirs, 'found')} found"
            )


def paired(ours: dict[str, Any], theirs: dict[str, Any], kind: str) -> str:
    from paired import difference

    return difference(np.array(ours[kind]), np.array(theirs[kind]))


def show_steps(found: list[dict[str, float]]) -> None:
    from paired import difference

    full = np.median([one["full"] for one in found])
    print(f"a step of 4 behind {PROMPT} tokens: {full * 1e3:.1f} ms of CPU time")
    for name, base in (("skip", "full"), ("look", "full"), ("look", "skip")):
        ratios = np.array([one[name] / one[base] for one in found])
        print(f"{name} / {base} - 1: {difference(ratios, np.ones(len(ratios)))}")


def show_speed(found: dict[str, Any]) -> None:
    for name, one in found["crowds"].items():
        print(
            f"{name}: {one['most']:.0f} at once (mean {one['mean']:.1f}), "
            f"{one['steps']:.0f} steps, {one['seconds']:.1f} s"
        )
        if one["took"]:
            wall, cpu = np.array(one["took"]).T * 1e3
            print(
                f"    giving back, ms a call that does: {np.median(wall):.2f}, at most "
                f"{max(wall):.2f}; CPU {np.median(cpu):.2f}, at most {max(cpu):.2f}"
            )


def main() -> None:
    if CHILD in sys.argv:
        child()
        return
    from corpora import Corpora
    from engines.vllm_plugin_rig import link_package
    from two_vllm.environment import ensure_environment
    from two_vllm.models import ensure_smollm2

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--needles", type=int, default=24)
    parser.add_argument("--part", choices=PARTS, help="leave out the other one")
    parser.add_argument("--worker", choices=EXECUTORS, default="here")
    options = parser.parse_args()
    corpora = Corpora(options.data)
    environment = ensure_environment()
    cases = {
        "model": str(ensure_smollm2(environment)),
        "text": corpora.text("wikitext2_valid.txt")[:200_000],
        "texts": options.texts,
        "needles": needles(
            corpora.records("lim_kv_retrieval_75.jsonl"), options.needles
        ),
        "worker": "here",
    }
    with tempfile.TemporaryDirectory() as folder:
        site = link_package(Path(folder))
        if options.part != "speed":
            found = run(environment, site, "quality", 2_000, cases)
            show_quality(found["arms"])
            show_steps(found["steps"])
        if options.part != "quality":
            cases["worker"] = options.worker
            show_speed(run(environment, site, "speed", SMALL_POOL, cases))


if __name__ == "__main__":
    main()
