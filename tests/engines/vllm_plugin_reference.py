"""What a model says of given answers when its cache has holes, by other software.

    python vllm_plugin_reference.py MODEL < cases.json

Run by vLLM's own Python, with the transformers library, in 32-bit floats. A case has
``prompt`` and ``answer`` (token ids), ``block_size``, ``num_first`` and ``num_held``
(blocks); without ``num_held`` there are no holes. Prints for each the log-likelihood
of each token of the answer: before a token is looked at, the oldest blocks behind the
first ones go until no more than ``num_held`` are there. Positions stay.
"""

import json
import sys
from typing import Any


def score(model: Any, case: dict[str, Any]) -> list[float]:
    import torch
    from transformers import DynamicCache

    prompt, answer, size = case["prompt"], case["answer"], case["block_size"]
    cache = DynamicCache()
    logits = model(torch.tensor([prompt]), past_key_values=cache).logits[0, -1]
    found = [float(torch.log_softmax(logits, -1)[answer[0]])]
    positions = list(range(len(prompt)))
    for at, token in enumerate(answer[:-1], len(prompt)):
        keep = kept(positions, at, size, case["num_first"], case.get("num_held"))
        if len(keep) < len(positions):
            positions = [positions[index] for index in keep]
            for layer in cache.layers:
                layer.keys = layer.keys[:, :, keep]
                layer.values = layer.values[:, :, keep]
        positions.append(at)
        logits = model(
            torch.tensor([[token]]),
            past_key_values=cache,
            position_ids=torch.tensor([[at]]),
            attention_mask=torch.ones((1, len(positions))),
        ).logits[0, -1]
        chosen = answer[at - len(prompt) + 1]
        found.append(float(torch.log_softmax(logits, -1)[chosen]))
    return found


def kept(
    positions: list[int], at: int, size: int, num_first: int, num_held: int | None
) -> list[int]:
    """Return which of the cached tokens stay when the one at *at* comes."""
    if num_held is None:
        return list(range(len(positions)))
    blocks = sorted({position // size for position in [*positions, at]})
    gone = set(blocks[num_first : max(num_first, len(blocks) - num_held + num_first)])
    return [
        index
        for index, position in enumerate(positions)
        if position // size not in gone
    ]


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    with torch.no_grad():
        found = [score(model, case) for case in json.load(sys.stdin)]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
