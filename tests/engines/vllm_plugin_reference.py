"""What a model says of given answers when its cache has holes, by other software.

    python vllm_plugin_reference.py MODEL < cases.json

Run by vLLM's own Python, with the transformers library, in 32-bit floats. A case has
``prompt`` and ``answer`` (token ids), ``block_size``, ``num_first`` and ``num_held``
(blocks); without ``num_held`` there are no holes. Prints for each the log-likelihood
of each token of the answer: before a token is looked at, the oldest blocks behind the
first ones go until no more than ``num_held`` are there. Positions stay. From the token
at position ``restored_at`` on, all of them are there again.
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
    gone: set[int] = set()
    for at, token in enumerate(answer[:-1], len(prompt)):
        if at < case.get("restored_at", at + 1):
            count = at // size + 1
            gone |= out(gone, count, case["num_first"], case.get("num_held", count))
        else:
            gone.clear()
        seen = torch.tensor(
            [[position // size not in gone for position in range(at + 1)]]
        )
        logits = model(
            torch.tensor([[token]]),
            past_key_values=cache,
            position_ids=torch.tensor([[at]]),
            attention_mask=seen.long(),
        ).logits[0, -1]
        chosen = answer[at - len(prompt) + 1]
        found.append(float(torch.log_softmax(logits, -1)[chosen]))
    return found


def out(gone: set[int], count: int, num_first: int, num_held: int) -> set[int]:
    """Return which of so many blocks go besides, the oldest behind the first ones."""
    there = [block for block in range(num_first, count) if block not in gone]
    return set(there[: max(0, count - len(gone) - num_held)])


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
