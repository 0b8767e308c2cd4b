"""LAMBADA, OpenBookQA and HellaSwag as items with continuations."""

from itertools import islice
from typing import Any

from bench import Bench
from choices import Item, compare

SHOTS = 5
HELLASWAG_LINES = 8
"""Lines an item in its file: four with the context, four without."""


def lambada(bench: Bench) -> list[dict[str, Any]]:
    """Guess the last word of a passage (Paperno et al. 2016)."""
    records = islice(bench.corpora.records("lambada_openai.jsonl"), bench.items)
    items = []
    for record in records:
        word = bench.encode(" " + record["continuation"])
        items.append(Item(bench.encode(record["context"]), [word], 0, (1,)))
    return compare(bench, items)


def openbookqa(bench: Bench) -> list[dict[str, Any]]:
    """Complete a sentence of science (Mihaylov et al. 2018), 5-shot."""
    records = list(bench.corpora.records("openbook_qa_llmfoundry.jsonl"))
    shots = "".join(
        f"{each['query']} {each['choices'][each['gold']]}\n\n"
        for each in records[:SHOTS]
    )
    items = [
        _item(bench, shots + each["query"], each["choices"], each["gold"])
        for each in records[SHOTS : SHOTS + bench.items]
    ]
    return compare(bench, items)


def hellaswag(bench: Bench) -> list[dict[str, Any]]:
    """Finish a description (Zellers et al. 2019), as ready 5-shot requests."""
    records = bench.corpora.records("hellaswag_rc5_olmo.jsonl")
    items = []
    for _ in range(bench.items):
        lines = list(islice(records, HELLASWAG_LINES))[:4]
        document = lines[0]["doc"]
        context = lines[0]["request"]["context"]
        choices = [line["request"]["continuation"].strip() for line in lines]
        items.append(_item(bench, context.rstrip(), choices, document["gold"]))
    return compare(bench, items)


def _item(bench: Bench, context: str, choices: list[str], gold: int) -> Item:
    return Item(
        bench.encode(context),
        [bench.encode(" " + choice) for choice in choices],
        gold,
        tuple(len(choice) for choice in choices),
    )
