"""One prompt against the view: what a match found, and what a dispatch entered."""

from array import array
from collections.abc import Sequence
from math import ceil

from warmroute.policies.kv.blocks import TEXT_BLOCK_BYTES, hash_text, hash_tokens
from warmroute.policies.kv.match import Match
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.mirror import Mirror
from warmroute.proxy.prompt import Piece

MAX_BLOCKS = 16_384
"""Blocks hashed of one piece; those behind count as not cached."""

_TEXT = 0
_ESTIMATE_ERROR = 0.1


class Chain:
    """The block hashes of one piece in one block size.

    Attributes:
        hashes: Of its full blocks, up to the bound; ``array("Q")``.
        tokens: Tokens a block; estimated for text.
        num_tokens: Tokens of the whole piece.
    """

    __slots__ = ("hashes", "num_tokens", "tokens")

    def __init__(self, hashes: list[int], tokens: int, num_tokens: int) -> None:
        # A quarter of the memory of a list, for as long as the request runs.
        self.hashes: Sequence[int] = array("Q", hashes)
        self.tokens = tokens
        self.num_tokens = num_tokens


class Lookup:
    """What each candidate has of a prompt, by tier, in the candidates' order.

    Attributes:
        mirrors: The view of each candidate; None where there is none.
        matched: Cached tokens in all tiers, whole engine blocks, at most n-1.
        gpu: Those on the GPU.
        host: Those beyond, there or in host memory; empty when nobody has tiers.
        disk: Those beyond, in any tier; likewise. The three add up to *matched*.
        pieces: The chains of each piece, by block size; 0 stands for text.
        bytes_per_token: Of the model, as it was at the lookup.
    """

    __slots__ = (
        "bytes_per_token",
        "disk",
        "gpu",
        "host",
        "matched",
        "mirrors",
        "pieces",
    )

    def __init__(
        self, mirrors: list[Mirror | None], bytes_per_token: float, has_tiers: bool
    ) -> None:
        self.mirrors = mirrors
        self.bytes_per_token = bytes_per_token
        self.matched = [0] * len(mirrors)
        self.gpu = self.matched.copy() if has_tiers else self.matched
        self.host = self.matched.copy() if has_tiers else []
        self.disk = self.host.copy()
        self.pieces: list[dict[int, Chain]] = []

    def __repr__(self) -> str:
        return f"<Lookup [Pieces: {len(self.pieces)}, matched: {self.matched}]>"

    def add(self, index: PrefixIndex, piece: Piece) -> None:
        """Match one more piece and add what it finds to the candidates' tokens."""
        chains: dict[int, Chain] = {}
        self.pieces.append(chains)
        if piece.tokens is None:
            self._find(index, piece, _TEXT, chains)
        else:
            for size in {one.block_size for one in self.mirrors if one is not None}:
                self._find(index, piece, size, chains)

    def chains(self, at: int) -> list[Chain]:
        """Return the chain of each piece in the block size of candidate *at*."""
        mirror = self.mirrors[at]
        if mirror is None:
            return []
        return [
            chains[_TEXT] if _TEXT in chains else chains[mirror.block_size]
            for chains in self.pieces
        ]

    def _chain(self, piece: Piece, size: int) -> Chain:
        if piece.tokens is not None:
            tokens = piece.tokens
            if len(tokens) > size * MAX_BLOCKS:
                tokens = tokens[: size * MAX_BLOCKS]
            return Chain(hash_tokens(tokens, size, piece.root), size, piece.num_tokens)
        text = piece.text or b""
        if len(text) > TEXT_BLOCK_BYTES * MAX_BLOCKS:
            text = text[: TEXT_BLOCK_BYTES * MAX_BLOCKS]
        block_tokens = max(1, round(TEXT_BLOCK_BYTES / self.bytes_per_token))
        return Chain(hash_text(text, piece.root), block_tokens, piece.num_tokens)

    def _find(
        self, index: PrefixIndex, piece: Piece, size: int, chains: dict[int, Chain]
    ) -> None:
        chain = chains[size] = self._chain(piece, size)
        match = index.match(chain.hashes)
        if not match.depth:
            return
        gpu, has_tiers = match.gpu, match.host is not None
        for at, mirror in enumerate(self.mirrors):
            if (
                mirror is not None
                and (gpu[mirror.slot] or has_tiers)
                and mirror.is_believed
                and size in (_TEXT, mirror.block_size)
            ):
                self._count(at, mirror, match, piece)

    def _count(self, at: int, mirror: Mirror, match: Match, piece: Piece) -> None:
        slot, size = mirror.slot, mirror.block_size
        most = (piece.num_tokens - 1) // size * size
        if most <= 0:
            return
        # In bytes of text or in tokens, of which whole engine blocks count.
        unit = float(size)
        if piece.tokens is None:
            unit = TEXT_BLOCK_BYTES / self.bytes_per_token
        blocks = match.gpu[slot]
        gpu = min(int(blocks * unit) // size * size, most)
        self.gpu[at] += gpu
        if match.host is None or match.disk is None:
            return
        blocks += match.host[slot]
        upper = min(int(blocks * unit) // size * size, most)
        blocks += match.disk[slot]
        total = min(int(blocks * unit) // size * size, most)
        self.host[at] += upper - gpu
        self.disk[at] += total - upper
        self.matched[at] += total


class Ticket:
    """A prompt that was entered for one backend, until its outcome is known.

    Attributes:
        chains: What was entered, a chain for each piece.
        predicted_tokens: What the view promised.
        entered: Stamp of the dispatch; unique.
        stamp: Stamp of its last use by this request.
        held: Leading blocks of each chain that were there before.
        previous: When the deepest of them was last used; None when not known or
            when that request's answer had not begun.
        volume: Tokens that had gone into the backend before.
    """

    __slots__ = (
        "_bytes_per_token",
        "_incarnation",
        "_is_text",
        "chains",
        "entered",
        "held",
        "mirror",
        "predicted_tokens",
        "previous",
        "stamp",
        "volume",
    )

    def __init__(self, lookup: Lookup, name: str, stamp: float) -> None:
        self.mirror: Mirror | None = None
        self.chains: list[Chain] = []
        self.predicted_tokens = 0
        for at, mirror in enumerate(lookup.mirrors):
            if mirror is not None and mirror.name == name:
                self.mirror = mirror
                self.chains = lookup.chains(at)
                self.predicted_tokens = lookup.matched[at]
                break
        self.entered = self.stamp = stamp
        self.held: list[int] = []
        self.previous: float | None = None
        self.volume = 0
        self._bytes_per_token = lookup.bytes_per_token
        self._is_text = bool(lookup.pieces) and _TEXT in lookup.pieces[0]
        self._incarnation = self.mirror.incarnation if self.mirror else 0

    def __repr__(self) -> str:
        name = self.mirror.name if self.mirror else None
        return f"<Ticket [{name}, predicted: {self.predicted_tokens}]>"

    def live_mirror(self) -> Mirror | None:
        """Return the backend's view, unless it was wiped or removed since."""
        mirror = self.mirror
        if mirror is None or mirror.incarnation != self._incarnation or not self.held:
            return None
        return mirror

    def is_short(self, cached_tokens: int) -> bool:
        """Say whether the engine had clearly less than was promised."""
        return self.predicted_tokens - cached_tokens >= self._tolerance()

    def is_over(self, cached_tokens: int) -> bool:
        """Say whether the engine had clearly more than was promised."""
        return cached_tokens - self.predicted_tokens >= self._tolerance()

    def blocks_in(self, cached_tokens: int) -> int:
        """Count the blocks of a chain that the engine must have had at least."""
        if not self._is_text:
            return cached_tokens // self.chains[0].tokens
        # Rounded up by a block, so that an estimate never drops what is there.
        return ceil(cached_tokens * self._bytes_per_token / TEXT_BLOCK_BYTES) + 1

    def _tolerance(self) -> float:
        """Tokens by which a report may differ and still agree."""
        block_size = self.mirror.block_size if self.mirror else 1
        if not self._is_text:
            return block_size
        estimate = TEXT_BLOCK_BYTES / self._bytes_per_token
        return block_size + estimate + _ESTIMATE_ERROR * self.predicted_tokens
