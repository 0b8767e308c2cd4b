"""Find one pair among many: what was evicted cannot be found again.

Key-value retrieval of Liu et al. 2024, "Lost in the Middle", section 3, cut to as many
pairs as the model can do with its full cache. A needle is found when its value is the
likeliest of all the values in the text: a small model rarely copies every character.
The question has the form of a line of the text, which a small model can continue.
"""

from itertools import islice
from typing import Any

import numpy as np
from bench import Bench
from choices import Item, compare

FILE = "lim_kv_retrieval_75.jsonl"
PAIRS = 12
"""As many as leave the full cache of SmolLM2-135M about half of the needles."""

SHOWN = 8
"""Characters of each key and value: the first group of its UUID."""


def retrieval(bench: Bench) -> list[dict[str, Any]]:
    """Compare the methods; chance finds one needle in `PAIRS`."""
    records = islice(bench.corpora.records(FILE), bench.items)
    random = np.random.default_rng(0)
    return compare(bench, [_item(bench, record, random) for record in records])


def _item(bench: Bench, record: dict[str, Any], random: np.random.Generator) -> Item:
    key, value = record["key"], record["value"]
    pairs = [each for each in record["ordered_kv_records"] if each[0] != key]
    place = int(random.integers(PAIRS))
    pairs.insert(place, [key, value])
    shown = [(each[:SHOWN], other[:SHOWN]) for each, other in pairs[:PAIRS]]
    lines = "".join(f'"{each}": "{other}"\n' for each, other in shown)
    values = [bench.encode(other) for _, other in shown]
    return Item(
        bench.encode(f'{lines}"{key[:SHOWN]}": "'),
        values,
        place,
        tuple(len(ids) for ids in values),
    )
