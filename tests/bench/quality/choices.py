"""Tasks in which the likeliest continuation of a context is chosen."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench import ALPHA, Bench, Ids, say
from fetching import Fetches
from forced import F32
from methods import Setting
from paired import difference, ratio

BATCH = 8
LEAST_BUDGET = 8
METHODS = ("window", "h2o", "infinigen")
"""Beside the full cache."""


@dataclass(frozen=True)
class Item:
    """Hold a context with its continuations, as token ids.

    Args:
        context: What comes before.
        continuations: What may follow; all items of a task have as many.
        gold: Which one is right.
        lengths: What each continuation's log likelihood is divided by.
    """

    context: list[int]
    continuations: list[list[int]]
    gold: int
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Judgement:
    """Hold what a method made of an item.

    Args:
        is_right: Whether it chose the right one; where there is only one, whether
            every token of it was the likeliest.
        likelihood: Log likelihood of the right one, nats.
        hits: Share of the right one's tokens that were the likeliest.
    """

    is_right: bool
    likelihood: float
    hits: float


class _Run:
    """What one method made of the items so far."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.judged: dict[int, Judgement] = {}
        self.fetches = Fetches()

    def judge(self, bench: Bench, items: Sequence[Item], batch: Sequence[int]) -> None:
        chosen = [items[at] for at in batch]
        found = _judge_batch(bench, chosen, self.method, self.fetches)
        self.judged.update(zip(batch, found, strict=True))


def compare(bench: Bench, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Judge items by each method, paired with the full cache.

    Batches come in random order, and each goes through all methods: when the time is
    up, the items judged by then are a random part of all.
    """
    runs = [
        _Run(each) for each in ("full", *METHODS) if each in ("full", *bench.methods)
    ]
    batches = _batches(items)
    started = time.monotonic()
    for count, batch in enumerate(batches, 1):
        for run in runs:
            run.judge(bench, items, batch)
        seconds = time.monotonic() - started
        say(f"{count} of {len(batches)} batches, {seconds:.0f} s")
        if seconds >= 60 * bench.minutes:
            break
    judged = sorted(runs[0].judged)
    full = [runs[0].judged[at] for at in judged]
    return [
        _row(run.method, [run.judged[at] for at in judged], full, run.fetches)
        for run in runs
    ]


def _batches(items: Sequence[Item]) -> list[list[int]]:
    """Put items of about one length together, in random order."""
    order = sorted(range(len(items)), key=lambda at: len(items[at].context))
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    random.Random(5).shuffle(batches)
    return batches


def _judge_batch(
    bench: Bench, items: Sequence[Item], method: str, fetches: Fetches
) -> list[Judgement]:
    """Judge items of about one length, cut on the left to the shortest."""
    length = min(len(item.context) for item in items)
    contexts = np.array([item.context[-length:] for item in items], np.int32)
    branches = _padded([item.continuations for item in items])
    budget = max(LEAST_BUDGET, round(bench.share * length))
    setting = Setting(method, budget, ALPHA)
    kv_heads = bench.forced.model.config.num_kv_heads
    attention = setting.attention(kv_heads, fetches)
    rows, forked = bench.forced.run(attention, contexts, branches)
    assert forked is not None
    return [
        _judge(bench, item, rows[at, -1], forked[at]) for at, item in enumerate(items)
    ]


def _padded(continuations: Sequence[list[list[int]]]) -> Ids:
    """Fill up on the right: what comes later changes nothing before."""
    width = max(len(ids) for choices in continuations for ids in choices)
    lines = [
        [ids + [0] * (width - len(ids)) for ids in choices] for choices in continuations
    ]
    return np.array(lines, np.int32)


def _judge(bench: Bench, item: Item, last: F32, forked: F32) -> Judgement:
    likelihoods, hits = [], []
    for ids, rows in zip(item.continuations, forked, strict=True):
        before = np.concatenate([last[None], rows[: len(ids) - 1]])
        logits = bench.forced.model.logits(before)
        likeliest = logits.argmax(axis=1)
        hits.append(float(np.mean(likeliest == ids)))
        logits -= logits.max(axis=1, keepdims=True)
        right = logits[np.arange(len(ids)), ids]
        likelihoods.append(float((right - np.log(np.exp(logits).sum(axis=1))).sum()))
    gold = item.gold
    if len(likelihoods) == 1:
        return Judgement(hits[0] == 1, likelihoods[0], hits[0])
    chosen = int(np.argmax(np.divide(likelihoods, item.lengths)))
    return Judgement(chosen == gold, likelihoods[gold], hits[gold])


def _row(
    method: str,
    judged: Sequence[Judgement],
    full: Sequence[Judgement],
    fetches: Fetches,
) -> dict[str, Any]:
    right = np.array([each.is_right for each in judged], float)
    right_full = np.array([each.is_right for each in full], float)
    likelihood = np.array([each.likelihood for each in judged])
    likelihood_full = np.array([each.likelihood for each in full])
    row: dict[str, Any] = {
        "method": method,
        "items": len(judged),
        "accuracy": round(float(right.mean()), 3),
        "to_full_95": difference(right, right_full),
        "of_full_95": ratio(right, right_full),
        "tokens_right": round(float(np.mean([each.hits for each in judged])), 3),
        "log_likelihood": round(float(likelihood.mean()), 2),
        "log_likelihood_to_full_95": difference(likelihood, likelihood_full),
    }
    if fetches.positions:
        row["fetched_tokens"] = round(fetches.mean, 1)
    return row
