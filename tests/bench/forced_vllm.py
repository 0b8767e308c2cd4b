"""A real vLLM whose answers are forced token by token, for benches of its budgets."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCK = 32
CHILD = "--child"
EXECUTORS = {"here": "uni", "apart": "mp"}
"""How vLLM is told where the worker is: in this process, or in another one."""

Scores = list[tuple[list[float], list[bool]]]
Budget = tuple[float, str]
"""A share of the prompt, and what goes: ``oldest``, ``random`` or ``attention``."""


class Engine:
    """One vLLM whose scheduler is inside this process, and whose answers can be forced.

    Args:
        model: Its folder.
        num_blocks: Pages of its pool.
        executor: One of `EXECUTORS`; a server on CPU has its worker apart.
        **options: More of vLLM's own.
    """

    def __init__(
        self, model: str, num_blocks: int, executor: str = "uni", **options: Any
    ) -> None:
        from vllm import LLM

        self.model = LLM(
            model,
            dtype="bfloat16",
            max_model_len=1_024,
            max_num_seqs=24,
            num_gpu_blocks_override=num_blocks,
            enforce_eager=True,
            enable_prefix_caching=True,
            logits_processors=["forced_logits:Forced"],
            disable_log_stats=True,
            distributed_executor_backend=executor,
            **{"block_size": BLOCK, **options},
        )
        core = self.model.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.control = self.scheduler._warmroute_control
        self.control.reach(core.model_executor)
        self.encode = self.model.get_tokenizer().encode
        self.set(None)

    def set(self, budget: Budget | None) -> None:
        asked: dict[str, object] = {"method": "full"}
        if budget is not None:
            share, chosen = budget
            method = "attention" if chosen == "attention" else "sinks"
            asked = {"method": method, "share": share}
            self.control._budgets._choose = CHOICES.get(chosen, oldest)
        answer = self.control.call(1, "budget", asked)
        while not answer.get("done"):
            if "error" in answer:
                sys.exit(f"budget {asked}: {answer['error']}")
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


def chosen_at_random(blocks: Sequence[int], count: int) -> list[int]:
    return CHANCE.sample(list(blocks), count)


def oldest(blocks: Sequence[int], count: int) -> Sequence[int]:
    return blocks[:count]


CHANCE = random.Random(0)
CHOICES = {"random": chosen_at_random}


def run(
    environment: Path, site: Path, measure: str, blocks: int, cases: dict[str, Any]
) -> Any:
    out = site / f"{measure}.json"
    asked = cases | {"measure": measure, "blocks": blocks, "out": str(out)}
    environ = {
        **os.environ,
        "PYTHONPATH": f"{site}{os.pathsep}{Path(__file__).parent}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VLLM_PLUGINS": "warmroute",
        "WARMROUTE_KV_ATTENTION": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with (site / f"{measure}.log").open("w") as log:
        done = subprocess.run(
            [environment / "bin" / "python", sys.argv[0], CHILD],
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
