"""Measure what paging, sharing and token-granular keys save; see README.md."""

import argparse
import json
import sys
from pathlib import Path

from best_of import best_of
from concurrency import paged, slabs
from lengths import Request, generated, read_trace
from waste import paged_waste, power_of_two, power_of_two_waste, slab_waste

BLOCKS = (16, 32, 128)
TOKENIZER = Path.home() / ".cache/warmroute/smollm2-135m-1"
Row = dict[str, int | float | str]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="lengths: Mooncake .jsonl[.zst]")
    parser.add_argument("--chats", type=Path, help="tau-bench .json[.zst]")
    parser.add_argument("--num-chats", type=int, default=140)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--memory", type=int, default=0, help="tokens of KV memory")
    parser.add_argument("--backlog", type=int, default=2_000, help="requests of it")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    return parser.parse_args()


def progress(text: str) -> None:
    """Say what is being measured."""
    print(f"  {text} ...", file=sys.stderr, flush=True)


def measure_waste(requests: list[Request], longest: int) -> list[Row]:
    """Return the share of empty slots of each way of memory."""
    rows: list[Row] = []
    for block in BLOCKS:
        progress(f"waste in pages of {block}")
        rows.append(
            {"memory": f"pages of {block}", "waste": paged_waste(requests, block)}
        )
    rows.append(
        {"memory": "slabs, power of two", "waste": power_of_two_waste(requests)}
    )
    rows.append(
        {"memory": f"slabs of {longest:,}", "waste": slab_waste(requests, longest)}
    )
    return rows


def measure_concurrency(
    requests: list[Request], longest: int, memory: int
) -> list[Row]:
    """Return how many requests run at once in *memory* tokens."""
    progress("concurrency in slabs")
    loads = {
        f"slabs of {longest:,}": slabs(requests, memory, lambda _: longest),
        "slabs, power of two": slabs(
            requests, memory, lambda request: power_of_two(request.total_tokens)
        ),
    }
    progress("concurrency in pages")
    loads["pages of 16"] = paged(requests, memory, 16, shares_prefixes=False)
    progress("concurrency in shared pages")
    loads["pages of 16, shared"] = paged(requests, memory, 16, shares_prefixes=True)
    return [{"memory": name, **load.row()} for name, load in loads.items()]


def measure_chats(chats: Path, tokenizer: Path, num_chats: int) -> list[Row]:
    """Return the hit tokens by token and by block."""
    from chats import hits_by_block, hits_by_token, read_calls

    progress("tokenizing chats")
    calls = read_calls(chats, tokenizer, num_chats)
    total = sum(len(prompt) for prompt, _ in calls)
    progress(f"hits by token in {len(calls)} calls of {total:,} prompt tokens")
    best = hits_by_token(calls)
    rows: list[Row] = [
        {
            "keys": "token",
            "hits": best,
            "ratio": best / total,
            "gained": 0,
            "a_call": 0.0,
        }
    ]
    for block in BLOCKS:
        progress(f"hits by block of {block}")
        hits = hits_by_block(calls, block)
        gained = best - hits
        rows.append(
            {
                "keys": f"block {block}",
                "hits": hits,
                "ratio": hits / total,
                "gained": gained,
                "a_call": gained / len(calls),
            }
        )
    return rows


def print_table(title: str, rows: list[Row]) -> None:
    """Print rows under their keys."""
    print(f"\n{title}")
    print("  " + "".join(f"{key.replace('_', ' '):>22}" for key in rows[0]))
    for row in rows:
        print("  " + "".join(f"{_cell(key, value):>22}" for key, value in row.items()))


def _cell(key: str, value: float | str) -> str:
    if key in ("waste", "ratio"):
        return f"{float(value):.2%}"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else value


def main() -> int:
    """Measure all that the arguments allow."""
    args = arguments()
    if args.chats and not (args.tokenizer / "tokenizer.json").is_file():
        print(
            f"no tokenizer.json in {args.tokenizer}; see --tokenizer", file=sys.stderr
        )
        return 2
    requests = read_trace(args.trace, None) if args.trace else generated()
    longest = max(request.total_tokens for request in requests)
    memory = args.memory or 8 * longest
    backlog = requests[: args.backlog]
    tables: dict[str, list[Row]] = {
        "best of 8, 100 new tokens, blocks of 16": [best_of(2_000), best_of(2_005)],
        f"empty slots at the end of {len(requests):,} requests": measure_waste(
            requests, longest
        ),
        f"requests running at once in {memory:,} tokens, backlog of {len(backlog):,}": (
            measure_concurrency(backlog, longest, memory)
        ),
    }
    if args.chats:
        tables["prompt tokens hit, everything kept"] = measure_chats(
            args.chats, args.tokenizer, args.num_chats
        )
    for title, rows in tables.items():
        print_table(title, rows)
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
