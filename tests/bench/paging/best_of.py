"""Best of eight: one prompt, eight answers, in pages and in slabs."""

from warmroute.policies.kv.block_table import BlockTable
from warmroute.policies.kv.pool import BlockPool

BLOCK = 16
ANSWERS = 8
NEW_TOKENS = 100


def best_of(prompt_tokens: int) -> dict[str, int | float | str]:
    """Run the answers through a pool in lockstep, as an engine decodes them."""
    pool = BlockPool(2_000, BLOCK)
    prompt = BlockTable(BLOCK)
    prompt.reserve(pool, prompt_tokens)
    answers = [prompt, *(prompt.fork(pool) for _ in range(ANSWERS - 1))]
    copies = 0
    for _ in range(NEW_TOKENS):
        for answer in answers:
            copies += len(answer.reserve(pool, 1))
    pages = pool.num_referenced
    pool.check_integrity()
    for answer in answers:
        answer.free(pool)
    assert pool.num_referenced == 0, "pages leaked"
    return {
        "prompt_tokens": prompt_tokens,
        "pages": pages,
        "paged_slots": pages * BLOCK,
        "contiguous_slots": ANSWERS * (prompt_tokens + NEW_TOKENS),
        "copied_pages": copies,
    }
