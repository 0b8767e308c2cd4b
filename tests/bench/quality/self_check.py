"""The bench's own arithmetic, checked against the model on a tiny one."""

import numpy as np
from fetching import Fetches
from forced import F32, Forced, Ids
from methods import METHODS, Setting

from warmroute.adapters.embedded.budget.calibration import calibrate, draw_sample
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.tiny import tiny_model

LENGTH, ANSWER, TEXTS, BRANCHES = 90, 11, 3, 2
TOLERANCE = 1e-3


class Unequal(Exception):
    """Two ways to the same numbers differ; says which."""


def check() -> None:
    """Compare on random texts; a few seconds.

    Raises:
        Unequal: Something is computed wrongly.
    """
    model = tiny_model()
    forced = Forced(model, calibrate(model, draw_sample(model.config), 0.5))
    random = np.random.default_rng(0)
    contexts = random.integers(3, 200, (TEXTS, LENGTH)).astype(np.int32)
    branches = random.integers(3, 200, (TEXTS, BRANCHES, ANSWER)).astype(np.int32)
    for method in METHODS:
        _check_branches(forced, Setting(method, 20), contexts, branches)
        whole = Setting(method, LENGTH + 1)
        rows = _run(forced, whole, contexts[:1])[0]
        _equal(f"{method} with room for all", rows, _engine(forced, contexts[0]))


def _check_branches(
    forced: Forced, setting: Setting, contexts: Ids, branches: Ids
) -> None:
    """A branch is the text with its continuation run in one piece."""
    kv_heads = forced.model.config.num_kv_heads
    attention = setting.attention(kv_heads, Fetches())
    _, forked = forced.run(attention, contexts, branches)
    assert forked is not None
    for text, context in enumerate(contexts):
        for at, branch in enumerate(branches[text]):
            joined = np.concatenate([context, branch])[None]
            rows = _run(forced, setting, joined)[0, len(context) :]
            _equal(f"branch of {setting.method}", forked[text, at], rows)


def _run(forced: Forced, setting: Setting, texts: Ids) -> F32:
    kv_heads = forced.model.config.num_kv_heads
    rows, _ = forced.run(setting.attention(kv_heads, Fetches()), texts)
    return rows


def _engine(forced: Forced, ids: Ids) -> F32:
    """Return the logits as the engine computes them, in pages."""
    length, block = len(ids), 16
    pages = np.arange(1, length // block + 2, dtype=np.int32)
    rows = SequenceRows(0, length, pages, length)
    positions = np.arange(length, dtype=np.int32)
    batch = Batch(ids, positions, positions + block, [rows], np.arange(length))
    store = KVStore(forced.model.config, len(pages) + 1, block)
    return forced.model.forward(batch, store)


def _equal(what: str, rows: F32, wanted: F32) -> None:
    if rows.shape != wanted.shape:
        rows = tiny_model().logits(rows)
    error = float(np.abs(rows - wanted).max())
    if not error < TOLERANCE:
        raise Unequal(f"{what}: off by {error:.3g} (allowed: {TOLERANCE})")
