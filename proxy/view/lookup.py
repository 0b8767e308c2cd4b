"""One prompt against the view: what a match found of it."""

from array import array
from collections.abc import Sequence
from typing import Final

from warmroute.policies.kv.blocks import TEXT_BLOCK_BYTES, hash_text, hash_tokens
from warmroute.policies.kv.match import find_reaches
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.run import Run
from warmroute.policies.kv.seen import SeenBlocks
from warmroute.policies.routing.candidate import Query
from warmroute.proxy.prompt import Piece
from warmroute.proxy.view.lineup import Lineup

MAX_BLOCKS: Final = 16_384
"""Blocks hashed of one piece; those behind count as not cached."""

_MAX_TEXT_BYTES: Final = TEXT_BLOCK_BYTES * MAX_BLOCKS
_MAX_LIST_BLOCKS: Final = 1024
_TEXT_BLOCK_TOKENS: Final = TEXT_BLOCK_BYTES / 4


class Chain:
    """The block hashes of one piece in one block size, and their place in the index.

    Attributes:
        hashes: Of its full blocks, up to the bound.
        unit: Tokens a block; of text, a fraction.
        tokens: The same in whole tokens.
        num_tokens: Tokens of the whole piece.
        is_text: Whether the blocks are text.
        path: Runs of the index that it passed when last looked up.
        depth: Its blocks in them.
        last: Run that it ended in when last inserted.
    """

    __slots__ = (
        "depth",
        "hashes",
        "is_text",
        "last",
        "num_tokens",
        "path",
        "tokens",
        "unit",
    )

    def __init__(
        self, index: PrefixIndex, piece: Piece, size: int, unit: float
    ) -> None:
        tokens = piece.tokens
        if tokens is None:
            text = piece.text or b""
            if len(text) > _MAX_TEXT_BYTES:
                text = text[:_MAX_TEXT_BYTES]
            self.is_text = True
            self.unit = unit
            self.tokens = round(unit) or 1
            hashes = hash_text(text, piece.root)
        else:
            if len(tokens) > size * MAX_BLOCKS:
                tokens = tokens[: size * MAX_BLOCKS]
            self.is_text = False
            self.tokens = size
            self.unit = float(size)
            hashes = hash_tokens(tokens, size, piece.root)
        self.num_tokens = piece.num_tokens
        self.hashes: Sequence[int] = hashes
        if len(hashes) > _MAX_LIST_BLOCKS:
            # A fifth of the memory of a list, for as long as the request runs.
            self.hashes = array("Q", hashes)
        self.path, self.depth = index.path(hashes)
        self.last: Run | None = None

    def __repr__(self) -> str:
        return f"<Chain [Blocks: {len(self.hashes)}, in the index: {self.depth}]>"


class Lookup:
    """What each candidate has of a prompt, by tier, in the candidates' order.

    Attributes:
        lineup: The candidates.
        matched: Cached tokens in all tiers, whole engine blocks, at most n-1.
        gpu: Those on the GPU.
        host: Those beyond, there or in host memory; empty when nobody has tiers.
        disk: Those beyond, in any tier; likewise. The three add up to *matched*.
        chains: The chain of each piece, by block size; one of text in all sizes.
        bytes_per_token: Of the model, as it was at the lookup.
        version: Of the index, as it was at the lookup.
    """

    __slots__ = (
        "bytes_per_token",
        "chains",
        "disk",
        "gpu",
        "host",
        "lineup",
        "matched",
        "version",
    )

    def __init__(
        self,
        lineup: Lineup,
        index: PrefixIndex,
        pieces: Sequence[Piece],
        bytes_per_token: float,
    ) -> None:
        self.lineup = lineup
        self.bytes_per_token = bytes_per_token
        self.version = index.version
        self.matched = [0] * len(lineup.mirrors)
        self.gpu = self.matched
        self.host: Sequence[int] = ()
        self.disk: Sequence[int] = ()
        self.chains: dict[int, list[Chain]] = {}
        unit = TEXT_BLOCK_BYTES / bytes_per_token
        texts: list[Chain] | None = None
        for size, bits in lineup.sizes:
            chains: list[Chain] = []
            for piece in pieces:
                if texts is None or piece.tokens is not None:
                    chains.append(Chain(index, piece, size, unit))
                else:
                    chains.append(texts[len(chains)])
            self.chains[size] = texts = chains
            self._count(chains, size, bits, self.matched, index.holders.gpu_tiers)
        if index.holders.has_tiers:
            self._count_tiers()
        if lineup.doubted:
            self._discount()

    def __repr__(self) -> str:
        return f"<Lookup [Sizes: {list(self.chains)}, matched: {self.matched}]>"

    def chains_at(self, index: int) -> Sequence[Chain]:
        """Return the chains in the block size of candidate *index*; O(1)."""
        mirror = self.lineup.mirrors[index]
        return () if mirror is None else self.chains.get(mirror.block_size, ())

    def describe(self, query: Query) -> None:
        """Tell a policy what the prompt begins with."""
        for chains in self.chains.values():
            if chains:
                query.blocks = chains[0].hashes
                # What is learned of bytes a token must not move what is hashed.
                query.block_tokens = (
                    _TEXT_BLOCK_TOKENS if chains[0].is_text else chains[0].unit
                )
            break

    def seen_tokens(self, seen: SeenBlocks) -> int:
        """Count the leading tokens that the fleet was ever sent; remember the rest.

        What is in the index was sent, so the memory is only asked beyond.
        """
        num_tokens = 0
        for chains in self.chains.values():
            for chain in chains:
                num_blocks = chain.depth
                if num_blocks < len(chain.hashes):
                    num_blocks = seen.observe(chain.hashes, num_blocks)
                reach = num_blocks * chain.tokens
                if not chain.is_text:
                    reach = min(reach, _most(chain.num_tokens, chain.tokens))
                num_tokens += reach
            break
        return num_tokens

    def _count(
        self, chains: list[Chain], size: int, bits: int, tokens: list[int], tiers: int
    ) -> None:
        """Add to *tokens* what the backends of *bits* have in the first *tiers*."""
        lineup = self.lineup
        for chain in chains:
            most = (chain.num_tokens - 1) // size * size
            if most <= 0 or not chain.depth:
                continue
            for reached, blocks in find_reaches(chain.path, chain.depth, bits, tiers):
                # In bytes of text or in tokens, of which whole engine blocks count.
                matched = int(blocks * chain.unit) // size * size
                if matched > most:
                    matched = most
                for at in lineup.spread(reached):
                    tokens[at] += matched

    def _count_tiers(self) -> None:
        upper = [0] * len(self.matched)
        self.matched = upper.copy()
        for size, bits in self.lineup.sizes:
            self._count(self.chains[size], size, bits, upper, 3)
            self._count(self.chains[size], size, bits, self.matched, 4)
        self.host = [b - a for a, b in zip(self.gpu, upper, strict=True)]
        self.disk = [c - b for b, c in zip(upper, self.matched, strict=True)]

    def _discount(self) -> None:
        """Take back a part of what doubted backends promise, in whole blocks."""
        if self.gpu is self.matched:
            self.matched = self.gpu.copy()
        for at in self.lineup.doubted:
            mirror = self.lineup.mirrors[at]
            assert mirror is not None
            believed = int(self.matched[at] * mirror.trust.discount)
            self.matched[at] = believed // mirror.block_size * mirror.block_size


def _most(num_tokens: int, block_size: int) -> int:
    """Count the tokens of a prompt that can be served from a cache at most."""
    return (num_tokens - 1) // block_size * block_size
