"""One model that several engines use at the same time."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.tiny import tiny_model

NUM_TOKENS = 480
BLOCK = 16
ROUNDS = 40


def test_threads_do_not_disturb_each_other() -> None:
    """Each computes what it computes alone."""
    model = tiny_model()

    def logits(seed: int) -> F32:
        num_pages = NUM_TOKENS // BLOCK
        store = KVStore(model.config, num_pages + 1, BLOCK)
        ids = np.random.default_rng(seed).integers(3, 200, NUM_TOKENS, np.int32)
        at = np.arange(NUM_TOKENS)
        table = np.arange(1, num_pages + 1, dtype=np.int32)
        rows = SequenceRows(0, NUM_TOKENS, table, NUM_TOKENS)
        slots = at + BLOCK
        last = np.array([NUM_TOKENS - 1])
        batch = Batch(ids, at.astype(np.int32), slots, [rows], last)
        return model.forward(batch, store)

    alone = [logits(seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            for mine, other in zip(alone, threads.map(logits, range(2)), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
