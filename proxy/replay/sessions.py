"""Traces of agents: a session a line, its prompts as growing lists of block ids.

The form of kv-cache-tester's published coding sessions, packed: a request is

    [seconds, agent, model, input, output, api seconds, think seconds, p, k, ranges]

and its blocks are the first *k* of request *p* of the session (-1 is none), followed by
runs ``[first id, count]``. Ids are of the session alone. What its sessions share is not
recorded; the authors assume three quarters of tools and system prompt, so those blocks
of an agent are taken to be the same wherever model and both lengths are.

A turn follows the turn of the same agent before it, once that was answered and thought
about; the first turn of a sub-agent follows the main agent's turn that called it.
"""

from array import array
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from warmroute.proxy.replay.packing import read_lines
from warmroute.proxy.replay.prefix_tree import PrefixTree
from warmroute.proxy.replay.trace import Session, Trace, TraceError, TraceRequest, Turn

_SHARED: Final = 0.75
_MOST_TOKENS: Final = 10**9
_MOST_BLOCKS: Final = 10**7
_ID_BITS: Final = 32


class _Agent(msgspec.Struct):
    agent: int
    tool_tokens: int = 0
    system_tokens: int = 0


class _Request(msgspec.Struct, array_like=True):
    at_s: float
    agent: int
    model: int
    input_tokens: int
    output_tokens: int
    api_s: float | None
    think_s: float | None
    parent: int
    num_kept: int
    runs: list[tuple[int, int]]


class _Session(msgspec.Struct):
    id: str
    block: int
    requests: list[_Request]
    tool_tokens: int = 0
    system_tokens: int = 0
    models: list[str] = []
    subagents: list[_Agent] = []


class SessionReader:
    """Read sessions line by line into one tree.

    Args:
        most_tokens: The longest prompt with its answer that an engine takes. A session
            ends before the first turn that is longer.
        most_think_s: Pauses are no longer than this.
    """

    __slots__ = (
        "_block_size",
        "_most_think_s",
        "_most_tokens",
        "_num_left_out",
        "_shared",
        "_tree",
    )

    def __init__(self, most_tokens: int, most_think_s: float = inf) -> None:
        self._most_think_s = most_think_s
        self._most_tokens = most_tokens
        self._tree = PrefixTree()
        self._block_size = 0
        self._num_left_out = 0
        self._shared: dict[tuple[str, int, int], int] = {}

    def __repr__(self) -> str:
        return f"<SessionReader {self._tree!r}>"

    def read(self, path: Path, lines: Sequence[bytes] | None = None) -> Trace:
        """Read all of *path*; blank lines are passed over.

        Raises:
            TraceError: The file or one of its lines cannot be read.
        """
        sessions: list[Session] = []
        for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
            if not line.strip():
                continue
            try:
                turns = self._turns(_decode(line), number)
            except ValueError as error:
                raise TraceError(f"{path}:{number}: {error}") from error
            if turns:
                sessions.append(Session(turns))
        if not sessions:
            raise TraceError(
                f"{path}: every session begins with more than {self._most_tokens} "
                f"tokens (allow more with --max-prompt)"
            )
        requests = tuple(turn.request for one in sessions for turn in one.turns)
        return Trace(
            path.name,
            self._block_size,
            requests,
            tuple(sessions),
            self._num_left_out,
            self._tree,
        )

    def _turns(self, session: _Session, number: int) -> list[Turn]:
        if session.block < 1:
            raise ValueError(f"block is {session.block} (allowed: 1 and more)")
        if self._block_size not in (0, session.block):
            raise ValueError(
                f"blocks of {session.block} tokens (needed: {self._block_size}, as in "
                f"the lines before)"
            )
        self._block_size = session.block
        blocks: list[array[int]] = []
        turns: list[Turn] = []
        last: dict[int, int] = {}
        for place, one in enumerate(session.requests):
            _check(one, place, self._block_size, blocks)
            if one.input_tokens + one.output_tokens > self._most_tokens:
                self._num_left_out += len(session.requests) - place
                break
            blocks.append(self._blocks(session, one, number, blocks))
            turns.append(self._turn(session, place, blocks[-1], last))
            last[one.agent] = place
        return turns

    def _turn(
        self, session: _Session, place: int, ids: "array[int]", last: dict[int, int]
    ) -> Turn:
        one = session.requests[place]
        segment = self._tree.insert(ids[: one.input_tokens // self._block_size])
        request = TraceRequest(
            one.at_s,
            one.input_tokens,
            one.output_tokens,
            self._tree.blocks(segment),
            segment,
            session.id,
        )
        after = last.get(one.agent, last.get(0, -1))
        think_s = one.think_s or 0.0
        if one.agent not in last and after >= 0:
            caller = session.requests[after]
            think_s = one.at_s - caller.at_s - (caller.api_s or 0.0)
        think_s = min(max(0.0, think_s), self._most_think_s)
        return Turn(request, after, think_s)

    def _blocks(
        self,
        session: _Session,
        one: _Request,
        number: int,
        earlier: Sequence["array[int]"],
    ) -> "array[int]":
        """Return the block ids of a prompt, unlike those of all other sessions."""
        base = number << _ID_BITS
        ids = array("Q", earlier[one.parent][: one.num_kept] if one.num_kept else ())
        for first, count in one.runs:
            ids.extend(range(base + first, base + first + count))
        head = self._shared_head(session, one)
        ids[: len(head)] = head[: len(ids)]
        return ids

    def _shared_head(self, session: _Session, one: _Request) -> "array[int]":
        tools, system = session.tool_tokens, session.system_tokens
        for agent in session.subagents:
            if one.agent == agent.agent:
                tools, system = agent.tool_tokens, agent.system_tokens
        known = one.model < len(session.models)
        model = session.models[one.model] if known else str(one.model)
        key = model, tools, system
        base = self._shared.setdefault(key, len(self._shared)) << _ID_BITS
        length = int(_SHARED * (tools + system) / session.block)
        # Above every id of a session, of which there are fewer than 2 ** 31 lines.
        base |= 1 << 63
        return array("Q", range(base, base + length))


def _decode(line: bytes) -> _Session:
    try:
        return msgspec.json.decode(line, type=_Session)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no session ({error}); is the line cut short?") from error


def _check(
    one: _Request, place: int, size: int, blocks: Sequence["array[int]"]
) -> None:
    """Raise ValueError for what cannot be."""
    where = f"requests[{place}]"
    for name, value, least in (
        ("input", one.input_tokens, 1),
        ("output", one.output_tokens, 0),
    ):
        if not least <= value <= _MOST_TOKENS:
            raise ValueError(f"{where}: {name} is {value} (allowed: {least} and more)")
    if not -1 <= one.parent < place:
        raise ValueError(
            f"{where}: request {one.parent} is not before it (allowed: -1 to "
            f"{place - 1})"
        )
    known = len(blocks[one.parent]) if one.parent >= 0 else 0
    if not 0 <= one.num_kept <= known:
        raise ValueError(
            f"{where}: takes {one.num_kept} blocks of request {one.parent}, which has "
            f"{known}"
        )
    num_blocks = one.num_kept
    for first, count in one.runs:
        if first < 0 or count < 1 or first + count >= 1 << _ID_BITS:
            raise ValueError(f"{where}: no run of blocks: [{first}, {count}]")
        num_blocks += count
    if num_blocks < one.input_tokens // size or num_blocks > _MOST_BLOCKS:
        raise ValueError(
            f"{where}: {num_blocks} blocks for {one.input_tokens} tokens (needed: "
            f"{one.input_tokens // size} of {size} tokens)"
        )
