"""Request traces as block ids: two public ones, read from files."""

import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512
SMALL_BLOCK = 64
WARM_SHARE = 0.75

NUM_SESSIONS = 160
SESSION_SEED = 3371
BEGIN_WITHIN_S = 7200.0
LONGEST_THINK_S = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: when it comes, its chained block ids, its turn if it is a chat."""

    time_s: float
    blocks: list[int]
    turn: int = 1


class DataMissing(Exception):
    """A trace file is not where it was said to be."""


def read_lines(folder: Path, name: str) -> list[str]:
    """Read ``name``, or ``name.zst`` with the zstd program."""
    plain, packed = folder / name, folder / f"{name}.zst"
    if plain.exists():
        return plain.read_text().splitlines()
    if not packed.exists():
        raise DataMissing(
            f"{plain}[.zst]: no such file; see tests/bench/eviction/README.md "
            f"for where the traces come from, and pass their folder with --data"
        )
    command = ["zstd", "--decompress", "--stdout", "--quiet", str(packed)]
    unpacked = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return unpacked.decode().splitlines()


def conversation(folder: Path) -> list[Request]:
    """Read the chats: 12,031 requests of an hour, partial last blocks included."""
    rows = map(
        json.loads, filter(None, read_lines(folder, "mooncake_conversation.jsonl"))
    )
    return with_turns(
        [Request(row["timestamp"] / 1000, row["hash_ids"]) for row in rows]
    )


def agentic(folder: Path, seed: int = SESSION_SEED) -> list[Request]:
    """Read 160 coding-agent sessions, drawn by *seed*, and let them run side by side.

    They begin at random within two hours. A turn comes when the answer before it took
    the time that it took, and the agent or its user thought as long as they did, 120 s
    at most.
    """
    lines = read_lines(folder, "agentic_coding.jsonl")
    rng = random.Random(seed)
    chosen = rng.sample(range(len(lines)), NUM_SESSIONS)
    ids: dict[tuple[object, ...], int] = {}
    requests: list[Request] = []
    for number in chosen:
        session = json.loads(lines[number])
        requests += _session(session, rng.uniform(0.0, BEGIN_WITHIN_S), ids)
    return sorted(requests, key=lambda one: one.time_s)


def with_turns(requests: list[Request]) -> list[Request]:
    """Guess turns: a prompt that begins with nearly all of another is its next turn."""
    last_user: dict[int, int] = {}
    turns: list[int] = []
    for index, request in enumerate(requests):
        deepest = None
        for block in request.blocks:
            if block not in last_user:
                break
            deepest = block
        turn = 1
        if deepest is not None:
            before = last_user[deepest]
            blocks = requests[before].blocks
            if deepest in blocks[-3:]:  # the partial last block differs, one may change
                turn = turns[before] + 1
        turns.append(turn)
        last_user.update(dict.fromkeys(request.blocks, index))
    return [
        Request(request.time_s, request.blocks, turn)
        for request, turn in zip(requests, turns, strict=True)
    ]


def _session(
    session: dict[str, object], start_s: float, ids: dict[tuple[object, ...], int]
) -> Iterator[Request]:
    """Yield the requests of one session in blocks of 512, full ones only."""
    prompts: list[list[int]] = []
    turns: dict[int, int] = {}
    now_s = start_s
    for row in session["requests"]:
        _, agent, model, _, _, api_s, think_s, before, kept, ranges = row
        prompt = prompts[before][:kept] if before >= 0 else []
        for first, count in ranges:
            prompt = prompt + list(range(first, first + count))
        prompts.append(prompt)
        turns[agent] = turns.get(agent, 0) + 1
        now_s += min(think_s or 0.0, LONGEST_THINK_S)
        warm = _warm_prefix(session, agent, session["models"][model])
        blocks = list(_blocks(session["id"], prompt, warm, ids))
        yield Request(now_s, blocks, turns[agent])
        now_s += api_s or 0.0


def _warm_prefix(
    session: dict[str, object], agent: int, model: str
) -> tuple[tuple[object, ...], int]:
    """Return whom a session shares its tools and system prompt with, and how much."""
    spec = session
    if agent:
        spec = next((s for s in session["subagents"] if s["agent"] == agent), {})
    tools, system = spec.get("tool_tokens") or 0, spec.get("system_tokens") or 0
    return (model, tools, system), int(WARM_SHARE * (tools + system)) // SMALL_BLOCK


def _blocks(
    session_id: str,
    prompt: list[int],
    warm: tuple[tuple[object, ...], int],
    ids: dict[tuple[object, ...], int],
) -> Iterator[int]:
    """Join eight blocks of 64 tokens into one of 512, known by its chain."""
    shared_with, num_shared = warm
    per_block = BLOCK // SMALL_BLOCK
    parent = -1
    for start in range(0, len(prompt) - per_block + 1, per_block):
        content = tuple(
            (shared_with, place) if place < num_shared else (session_id, prompt[place])
            for place in range(start, start + per_block)
        )
        parent = ids.setdefault((parent, content), len(ids))
        yield parent
