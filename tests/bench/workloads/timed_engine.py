"""Run the embedded engine with a model that sleeps as long as a step would take.

    python timed_engine.py --constants engine.json --port 8101 --num-blocks 1536

A fake where cores are too few for several engines. Server, scheduler, prefix cache, KV
events and metrics are those of ``warmroute engine``, and so are all flags but
``--constants``. The model is no model: a step sleeps for the seconds of the batching
model of ``warmroute replay``, and every token of an answer is the same.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from warmroute.adapters.embedded.command import EngineCommand
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.loading import LoadedModel
from warmroute.adapters.embedded.model.tiny import random_tensors, tiny_tokenizer
from warmroute.adapters.embedded.model.weights import fuse_weights
from warmroute.adapters.embedded.server import process

NAME = "timed"
VOCABULARY = 50_000
_SAID = "a"
# A step that follows another within this time began when that one was to end, so that
# waking up late on a busy machine does not add up.
_SLACK_S = 0.02


def timed_config() -> LlamaConfig:
    """Return the least shape that has room for long prompts of many words."""
    return LlamaConfig(
        name=NAME,
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=4,
        max_positions=65_536,
        eos_ids=(2,),
        bos_id=1,
    )


class TimedModel(Llama):
    """Sleep for the time of each step, and always say the same token.

    Args:
        config: Its shape.
        constants: Of the batching model, by name.
        said: The token.
    """

    __slots__ = ("_constants", "_due", "_said")

    def __init__(
        self, config: LlamaConfig, constants: dict[str, float], said: int
    ) -> None:
        super().__init__(config, fuse_weights(random_tensors(config, 0), config))
        self._constants = constants
        self._said = said
        self._due = 0.0

    def forward(self, batch: Batch, store: KVStore) -> F32:
        """Sleep through a step."""
        now = time.monotonic()
        start = self._due if now - self._due < _SLACK_S else now
        self._due = start + self.step_s(batch)
        time.sleep(max(0.0, self._due - time.monotonic()))
        logits = np.zeros((len(batch.sample_rows), self.config.vocab_size), np.float32)
        logits[:, self._said] = 1.0
        return logits

    def step_s(self, batch: Batch) -> float:
        """Return the seconds that the batching model gives the step."""
        costs = self._constants
        seconds = costs["step_s"] + costs["sequence_s"] * len(batch.sequences)
        for rows in batch.sequences:
            before = rows.context - rows.count
            if rows.count == 1 and before:
                seconds += costs["context_s_per_token"] * rows.context
                continue
            pairs = rows.count * before + rows.count * (rows.count + 1) / 2
            seconds += costs["prefill_s_per_token"] * rows.count
            seconds += costs["attention_s_per_pair"] * pairs
        return seconds


def load_timed(constants: dict[str, float]) -> LoadedModel:
    """Make the model and a tokenizer for it."""
    tokenizer = tiny_tokenizer()
    (said,) = tokenizer.encode(_SAID)
    return LoadedModel(TimedModel(timed_config(), constants, said), tokenizer, NAME)


def main() -> int:
    """Serve until a signal."""
    command = EngineCommand()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--constants", type=Path, required=True)
    command.add_arguments(parser)
    options = parser.parse_args()
    constants = json.loads(options.constants.read_text())
    with patch.object(process, "load_model", lambda path: load_timed(constants)):
        return command.run(options)


if __name__ == "__main__":
    sys.exit(main())
