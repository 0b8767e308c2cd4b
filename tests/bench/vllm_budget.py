"""Measure what a budget of blocks costs and brings on vLLM, with SmolLM2-135M.

    python tests/bench/vllm_budget.py --data DIR [--texts 12] [--needles 24]

Answers are forced token by token through real decode steps, so that every one of them
sees only the blocks held; vLLM tells the log-likelihood that it gave each. Arms differ
in the budget alone, share the cached prompt, and are compared item by item, with 95 %
intervals by the bootstrap:

- WikiText-2 (validation, CC BY-SA 3.0): 768 tokens of prompt, 48 forced.
- Key-value retrieval ("Lost in the Middle", MIT): 40 pairs, the question and the value
  forced. A needle is found if every token of its value was the likeliest one.
- The same eight prompts with a budget that gives back one block, and with none, in
  turn: what skipping blocks costs a step.
- Twelve requests in a pool for five: how many run at once.

``random`` gives back random blocks instead of the oldest; no server offers it. The
first token of an answer comes from the prefill, which is whole; it is left out. The
data are looked for in DIR: wikitext2_valid.txt of pytorch/examples and
lim_kv_retrieval_75.jsonl of nelson-liu/lost-in-the-middle, plain or packed.

The first run makes the environment of vLLM (about 4 GB), as the example does.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [
    str(ROOT / "tests"),
    str(ROOT / "examples" / "01_two_vllm"),
    str(ROOT / "tests" / "bench" / "quality"),
]

BLOCK = 32
PROMPT, ANSWER = 768, 48
PAIRS, SHOWN = 40, 8
CROWD, LONG, SAID = 12, 192, 96
SMALL_POOL = 1 + 5 * (LONG + SAID) // BLOCK + 2
ROUNDS = 6
ARMS = {
    "full": None,
    "50 % oldest": (0.5, False),
    "50 % random": (0.5, True),
    "25 % oldest": (0.25, False),
    "25 % random": (0.25, True),
}
CHILD = "--child"

Scores = list[tuple[list[float], list[bool]]]


class Engine:
    """One vLLM inside this process, whose answers can be forced."""

    def __init__(self, model: str, num_blocks: int) -> None:
        from vllm import LLM
        from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

        class Forced(AdapterLogitsProcessor):
            """Let the next token of an answer be the one that was given."""

            def is_argmax_invariant(self) -> bool:
                return False

            def new_req_logits_processor(self, params: Any) -> Any:
                forced = (params.extra_args or {}).get("forced")
                return None if forced is None else only(forced)

        self.model = LLM(
            model,
            dtype="bfloat16",
            max_model_len=1_024,
            max_num_seqs=24,
            block_size=BLOCK,
            num_gpu_blocks_override=num_blocks,
            enforce_eager=True,
            enable_prefix_caching=True,
            logits_processors=[Forced],
            disable_log_stats=True,
        )
        core = self.model.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.control = self.scheduler._warmroute_control
        self.control.reach(core.model_executor)
        self.encode = self.model.get_tokenizer().encode
        self.set(None)

    def set(self, budget: tuple[float, bool] | None) -> None:
        asked: dict[str, object] = {"method": "full"}
        if budget is not None:
            asked = {"method": "sinks", "share": budget[0]}
            self.control._budgets._choose = chosen_at_random if budget[1] else oldest
        answer = self.control.call(1, "budget", asked)
        while not answer["done"]:
            answer = self.control.call(1, "", {})

    def force(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Any:
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=0,
                max_tokens=len(answer),
                ignore_eos=True,
                logprobs=1,
                extra_args={"forced": answer},
            )
            for answer in answers
        ]
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = self.model.generate(asked, params, use_tqdm=False)
        return [one.outputs[0] for one in done]

    def score(
        self, prompts: Sequence[list[int]], answers: Sequence[list[int]]
    ) -> Scores:
        """Return log-likelihoods of the tokens, and whether each was the likeliest."""
        found: Scores = []
        for said, answer in zip(self.force(prompts, answers), answers, strict=True):
            assert list(said.token_ids) == answer
            rows = [
                row[token] for row, token in zip(said.logprobs, answer, strict=True)
            ]
            found.append(
                ([one.logprob for one in rows], [one.rank == 1 for one in rows])
            )
        return found


def only(forced: list[int]) -> Callable[[list[int], Any], Any]:
    def process(said: list[int], logits: Any) -> Any:
        logits.fill_(float("-inf"))
        logits[forced[min(len(said), len(forced) - 1)]] = 0.0
        return logits

    return process


def chosen_at_random(blocks: Sequence[int], count: int) -> list[int]:
    return CHANCE.sample(list(blocks), count)


def oldest(blocks: Sequence[int], count: int) -> Sequence[int]:
    return blocks[:count]


CHANCE = random.Random(0)


def quality(engine: Engine, cases: dict[str, Any]) -> dict[str, Any]:
    """Score texts and needles in every arm."""
    ids = engine.encode(cases["text"])
    step = (len(ids) - PROMPT - ANSWER) // cases["texts"]
    starts = [at * step for at in range(cases["texts"])]
    texts = [ids[at : at + PROMPT] for at in starts]
    ends = [ids[at + PROMPT : at + PROMPT + ANSWER] for at in starts]
    heads = [engine.encode(one["head"]) for one in cases["needles"]]
    asks = [engine.encode(one["ask"]) for one in cases["needles"]]
    values = [engine.encode(one["value"]) for one in cases["needles"]]
    found: dict[str, Any] = {}
    for name, budget in ARMS.items():
        engine.set(budget)
        said = engine.score(texts, ends)
        forced = [ask + value for ask, value in zip(asks, values, strict=True)]
        told = engine.score(heads, forced)
        tails = [
            (logs[len(ask) :], best[len(ask) :])
            for (logs, best), ask in zip(told, asks, strict=True)
        ]
        found[name] = {
            "text": [float(np.mean(logs[1:])) for logs, _ in said],
            "same": [best[1:] for _, best in said],
            "needle": [float(np.mean(logs)) for logs, _ in tails],
            "found": [float(all(best)) for _, best in tails],
        }
        print(name, flush=True)
    engine.set(None)
    return found


def speed(engine: Engine, cases: dict[str, Any]) -> dict[str, Any]:
    """Time steps with one block skipped and none, then fill the small pool."""
    ids = engine.encode(cases["text"])
    prompts = [ids[at * LONG : (at + 1) * LONG] for at in range(CROWD)]
    answers = [ids[-SAID:]] * CROWD
    few = prompts[:4], [answer[:BLOCK] for answer in answers[:4]]
    engine.force(*few)
    steps: list[tuple[float, float]] = []
    for at in range(ROUNDS):
        pair = {}
        for name, budget in sorted(
            {"full": None, "skip": (1 - 1 / 16, False)}.items(), reverse=bool(at % 2)
        ):
            engine.set(budget)
            begun = time.perf_counter()
            engine.force(*few)
            pair[name] = (time.perf_counter() - begun) / BLOCK
        steps.append((pair["skip"], pair["full"]))
    crowds = {}
    for name in ("full", "50 % oldest", "25 % oldest"):
        engine.set(ARMS[name])
        engine.model.reset_prefix_cache()
        crowds[name] = crowd(engine, prompts, answers)
    return {"steps": steps, "crowds": crowds}


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


def child() -> None:
    cases = json.load(sys.stdin)
    measure = {"quality": quality, "speed": speed}[cases["measure"]]
    found = measure(Engine(cases["model"], cases["blocks"]), cases)
    Path(cases["out"]).write_text(json.dumps(found))


def run(
    environment: Path, site: Path, measure: str, blocks: int, cases: dict[str, Any]
) -> Any:
    out = site / f"{measure}.json"
    asked = cases | {"measure": measure, "blocks": blocks, "out": str(out)}
    environ = {
        **os.environ,
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        "VLLM_PLUGINS": "warmroute",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with (site / f"{measure}.log").open("w") as log:
        done = subprocess.run(
            [environment / "bin" / "python", __file__, CHILD],
            input=json.dumps(asked),
            text=True,
            stdout=log,
            stderr=log,
            env=environ,
            check=False,
        )
    if done.returncode:
        sys.exit((site / f"{measure}.log").read_text()[-3_000:])
    return json.loads(out.read_text())


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
    from paired import difference

    print("| blocks held | WikiText nats/token | like full | needle nats/token |")
    full = found["full"]
    for name, arm in found.items():
        same = [
            float(np.mean(np.equal(one, other)))
            for one, other in zip(arm["same"], full["same"], strict=True)
        ]
        print(
            f"| {name} | {np.mean(arm['text']):.3f} "
            f"({difference(np.array(arm['text']), np.array(full['text']))}) "
            f"| {np.mean(same):.3f} | {np.mean(arm['needle']):.3f} "
            f"({difference(np.array(arm['needle']), np.array(full['needle']))}), "
            f"found {np.mean(arm['found']):.2f} |"
        )
    for share in ("50 %", "25 %"):
        ours, theirs = found[f"{share} oldest"], found[f"{share} random"]
        for kind in ("text", "needle", "found"):
            paired = difference(np.array(ours[kind]), np.array(theirs[kind]))
            print(f"{share}: oldest given back against random, {kind}: {paired}")


def show_speed(found: dict[str, Any]) -> None:
    ratios = [one / other for one, other in found["steps"]]
    full = np.median([other for _, other in found["steps"]]) * 1e3
    print(
        f"a step of 4: {full:.1f} ms; ratio with a block skipped: median "
        f"{np.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )
    for name, one in found["crowds"].items():
        print(
            f"{name}: {one['most']:.0f} at once (mean {one['mean']:.1f}), "
            f"{one['steps']:.0f} steps, {one['seconds']:.1f} s"
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
    }
    with tempfile.TemporaryDirectory() as folder:
        site = link_package(Path(folder))
        show_quality(run(environment, site, "quality", 2_000, cases))
        show_speed(run(environment, site, "speed", SMALL_POOL, cases))


if __name__ == "__main__":
    main()
