"""From prefixes as the view knows them to the engines' own block hashes."""

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.run import Run

_SLICE_S = 0.002
_MAX_SESSIONS = 65_536


class Sessions:
    """Remember the last block of each session's newest prompt; the newest 65,536.

    A hash names all that is in front of it, in blocks of one size; engines differ in
    it. Keys come from headers and bodies and may be long, so that digests of them are
    kept. O(sizes + length of the key) a request that has a session.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, Mapping[int, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Sessions [{len(self._last)} remembered]>"

    def note(self, session: str, ends: Mapping[int, int]) -> None:
        """Remember where the prompt of a session ended, by tokens a block."""
        if ends:
            last, digest = self._last, _digest(session)
            last[digest] = ends
            last.move_to_end(digest)
            if len(last) > _MAX_SESSIONS:
                last.popitem(last=False)

    def find(self, session: str) -> Mapping[int, int] | None:
        """Return the hash of the last block by tokens a block, or None.

        A key beyond ASCII is looked up as a header gives it, too: in latin-1.
        """
        found = self._last.get(_digest(session))
        if found is None and not session.isascii():
            found = self._last.get(_digest(_in_header(session)))
        return found


def _digest(session: str) -> bytes:
    """Return 16 bytes by which nobody passes for another session."""
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _in_header(session: str) -> str:
    return session.encode("utf-8", "surrogatepass").decode("latin-1")


async def find_run(index: PrefixIndex, block_hash: int) -> Run | None:
    """Return the run that has a block; O(blocks), 2 ms of the loop at a time."""
    until = time.monotonic() + _SLICE_S
    for run in index.root.walk():
        if block_hash in run.hashes and run.parent is not None:
            return run
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _SLICE_S
    return None


def keys_of(tiers: Sequence[int], run: Run, block_hash: int) -> list[int]:
    """Return a backend's own hashes of the blocks up to one of ours, head first.

    What it does not hold ends the list; empty for one that announces nothing.

    Args:
        tiers: Those of the backend that count.
        run: The run that has the block, or one that was split off behind it.
        block_hash: The last block.
    """
    above: list[Run] = []
    at: Run | None = run
    while at is not None and block_hash not in at.hashes:
        at = at.parent
    if at is None:
        return []
    run = at
    while at is not None and at.hashes:
        above.append(at)
        at = at.parent
    keys: list[int] = []
    for one in reversed(above):
        known = _longest(one, tiers)
        if one is run:
            known = known[: one.hashes.index(block_hash) + 1]
        keys += known
        if len(known) < len(one.hashes):
            break
    return keys


def _longest(run: Run, tiers: Sequence[int]) -> "array[int]":
    """Return the keys of the tier that has most of a run; the fastest of equals."""
    empty: array[int] = array("Q")
    if run.keys is None:
        return empty
    return max((run.keys.get(tier, empty) for tier in tiers), key=len)
