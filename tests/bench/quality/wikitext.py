"""WikiText-2: perplexity against the budget, and with a limited host pool."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from bench import ALPHA, PAPER_ALPHA, Bench, Ids, say
from methods import Setting
from perplexity import Outcome, measure

FILE = "wikitext2_valid.txt"
LENGTH = 1024
CALIBRATION_TEXTS = 1
"""Texts at the beginning that InfiniGen is calibrated on; none is scored."""

BUDGETS = (0.2, 0.1, 0.05)
CURVE = (0.04, 0.1, 0.2, 0.4, 1.0)
POOL_SHARE = 0.8
POOL_VICTIMS = ("fifo", "lru", "counter")


def texts(bench: Bench) -> Ids:
    """Return ``[sequences, 1024]`` tokens from behind the calibration."""
    first, last = CALIBRATION_TEXTS, CALIBRATION_TEXTS + bench.sequences
    text = bench.corpora.text(FILE)
    ids = bench.encode(text[: 8 * LENGTH * last])[: LENGTH * last]
    return np.array(ids, np.int32).reshape(last, LENGTH)[first:]


def budgets(bench: Bench) -> list[dict[str, Any]]:
    """Compare all methods at 20, 10 and 5 %."""
    rows = []
    wanted = texts(bench)
    full = _run(Setting("full", LENGTH), bench, wanted)
    for share in BUDGETS:
        budget = int(share * LENGTH)
        settings = [Setting(name, budget, ALPHA) for name in bench.methods]
        if "infinigen" in bench.methods and share == BUDGETS[0]:
            settings.append(Setting("infinigen", budget, PAPER_ALPHA))
        rows.append(_row(bench, Setting("full", budget), full, full))
        rows += [
            _row(bench, setting, _run(setting, bench, wanted), full)
            for setting in settings
        ]
    return rows


def curve(bench: Bench) -> list[dict[str, Any]]:
    """Follow the methods from 4 to 100 %, all scored on the same tokens."""
    rows = []
    wanted = texts(bench)
    full = _run(Setting("full", LENGTH), bench, wanted)
    for share in CURVE:
        budget = int(share * LENGTH)
        for name in ("window", "sinks", "h2o", "infinigen"):
            setting = Setting(name, budget, ALPHA)
            outcome = full if share == 1 else _run(setting, bench, wanted)
            first = int(min(CURVE) * LENGTH)
            rows.append(_row(bench, setting, outcome, full, first))
    return rows


def pool(bench: Bench) -> list[dict[str, Any]]:
    """Limit the host pool to 80 % of the text: table 2 of the InfiniGen paper."""
    rows = []
    wanted = texts(bench)
    budget, capacity = int(bench.share * LENGTH), int(POOL_SHARE * LENGTH)
    full = _run(Setting("full", budget), bench, wanted)
    rows.append(_row(bench, Setting("full", budget), full, full, capacity))
    unlimited = Setting("infinigen", budget, ALPHA)
    rows.append(_row(bench, unlimited, _run(unlimited, bench, wanted), full, capacity))
    for victims in POOL_VICTIMS:
        setting = Setting("infinigen", budget, ALPHA, (capacity, victims))
        outcome = _run(setting, bench, wanted)
        rows.append(_row(bench, setting, outcome, full, capacity))
    return rows


def _run(setting: Setting, bench: Bench, wanted: Ids) -> Outcome:
    started = time.monotonic()
    outcome = measure(bench.forced, setting, wanted)
    say(f"{setting}: {time.monotonic() - started:.0f} s")
    return outcome


def _row(
    bench: Bench,
    setting: Setting,
    outcome: Outcome,
    full: Outcome,
    first: int | None = None,
) -> dict[str, Any]:
    """Describe one run, scored from *first* on, else past the budget."""
    first = setting.budget if first is None else first
    perplexity = outcome.perplexity(first)
    row: dict[str, Any] = {
        "method": setting.method,
        "budget": setting.budget,
        "share": round(setting.budget / LENGTH, 2),
        "perplexity": round(perplexity, 2),
        "to_full": round(perplexity / full.perplexity(first), 3),
    }
    if setting.method == "infinigen":
        row["alpha"] = setting.alpha
    if setting.pool is not None:
        row["victims"] = setting.pool[1]
    return row | _moved(bench, outcome, setting)


def _moved(bench: Bench, outcome: Outcome, setting: Setting) -> dict[str, Any]:
    if setting.method not in ("exact", "infinigen") or not outcome.fetches.positions:
        return {}
    per_token = bench.forced.model.config.kv_bytes_per_token
    moved: dict[str, Any] = {
        "fetched_tokens": round(outcome.fetches.mean, 1),
        "fetched_bytes_a_token": round(outcome.fetches.mean * per_token),
    }
    if outcome.fetches.overlap is not None:
        moved["overlap_with_exact"] = round(outcome.fetches.overlap, 3)
    return moved


def columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of all fields, in the order of their first use."""
    return list(dict.fromkeys(name for row in rows for name in row))
