"""Measure what token eviction costs in quality.

Usage: python tests/bench/quality/run.py --data DIR [--task TASK] [--json FILE]

README.md says where the data come from and what the tasks are.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needle
import numpy as np
import self_check
import tasks
import wikitext
from bench import Bench, say
from corpora import Corpora, NoData
from forced import Forced
from methods import METHODS
from plot import write_curve

from warmroute.adapters.embedded.budget.calibration import calibrate
from warmroute.adapters.embedded.model.loading import load_model
from warmroute.policies.errors import WarmrouteError

Rows = list[dict[str, Any]]

TASKS: dict[str, Callable[[Bench], Rows]] = {
    "wikitext": wikitext.budgets,
    "curve": wikitext.curve,
    "pool": wikitext.pool,
    "lambada": tasks.lambada,
    "openbookqa": tasks.openbookqa,
    "hellaswag": tasks.hellaswag,
    "needle": needle.retrieval,
}


def prepare(arguments: argparse.Namespace) -> Bench:
    """Load the model and calibrate the speculation."""
    loaded = load_model(arguments.model)
    corpora = Corpora(arguments.data)
    text = corpora.text(wikitext.FILE)[: 8 * wikitext.LENGTH]
    ids = loaded.tokenizer.encode(text, add_special=False)[: wikitext.LENGTH // 2]
    speculations = calibrate(loaded.model, np.array(ids, np.int32), arguments.partial)
    return Bench(
        Forced(loaded.model, speculations),
        loaded.tokenizer,
        corpora,
        arguments.sequences,
        arguments.items,
        arguments.share,
        tuple(arguments.methods),
        arguments.minutes,
    )


def show(task: str, rows: Rows) -> None:
    """Print the rows as a table."""
    names = wikitext.columns(rows)
    print(f"\n{task}\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join(str(row.get(name, '')) for name in names)} |")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the data")
    parser.add_argument("--task", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--model", help="GGUF file or folder; default: SmolLM2-135M")
    parser.add_argument("--sequences", type=int, default=4, help="texts a perplexity")
    parser.add_argument("--items", type=int, default=100, help="items a task")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="longest time a task of items"
    )
    parser.add_argument("--share", type=float, default=0.2, help="budget of the tasks")
    parser.add_argument("--partial", type=float, default=0.5, help="share guessed with")
    parser.add_argument(
        "--methods", choices=METHODS[1:], nargs="+", default=METHODS[1:]
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, help="write the curve's SVG here")
    parser.add_argument("--self-check", action="store_true", help="check the bench")
    return parser.parse_args()


def main() -> int:
    """Run the tasks asked for."""
    arguments = parse()
    if arguments.self_check:
        self_check.check()
        print("self-check passed")
        return 0
    figures: dict[str, Rows] = {}
    try:
        bench = prepare(arguments)
        for task in arguments.task:
            started = time.monotonic()
            figures[task] = TASKS[task](bench)
            show(task, figures[task])
            say(f"{task}: {time.monotonic() - started:.0f} s")
    except (NoData, WarmrouteError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.plot and "curve" in figures:
        write_curve(arguments.plot, figures["curve"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
