"""What cached blocks are made of, each note at a place of its own.

Places are taken again, so there are as many as there were ever notes at a time, and
whoever goes through them by number may stop anywhere, whatever comes and goes then.
"""

from array import array
from collections.abc import Iterable, Sequence

import msgspec

from warmroute.policies.kv.shards import LAST, Shards


class Content(msgspec.Struct, frozen=True, gc=False):
    """Describe one cached block, and say at which place it is noted."""

    parent: int | None
    depth: int
    packed: bytes
    """The tokens, packed: the garbage collector would go through arrays of them."""
    extra_keys: list[object] | None
    place: int

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens."""
        return memoryview(self.packed).cast("I")


class Notes:
    """Keep the notes by hash and by place. O(1) a call.

    Attributes:
        num_made: Notes ever made; each has the number that this was before it.
    """

    __slots__ = ("_by_hash", "_hashes", "_numbers", "_spare", "num_made")

    def __init__(self) -> None:
        self._by_hash: Shards[bytes, Content] = Shards()
        self._hashes: list[bytes | None] = []
        # Of a place that is free, the one to be taken after it, and 1; a list of those
        # would be moved as it grows, when all that there is goes at once.
        self._numbers = array("Q")
        self._spare = 0
        self.num_made = 0

    def __repr__(self) -> str:
        return f"<Notes [Blocks: {len(self)}]>"

    def __len__(self) -> int:
        return len(self._by_hash)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._by_hash.tables[hash(block_hash) & LAST]

    @property
    def num_places(self) -> int:
        """Places, those that are free included."""
        return len(self._hashes)

    def get(self, block_hash: bytes) -> Content | None:
        """Return what a block is made of, if it is noted."""
        return self._by_hash.tables[hash(block_hash) & LAST].get(block_hash)

    def number(self, place: int) -> int:
        """Return the number of the note that is at a place."""
        return self._numbers[place]

    def hashes(self, places: Iterable[int]) -> list[bytes]:
        """Return the hashes that are noted at these places."""
        found = map(self._hashes.__getitem__, places)
        return [block_hash for block_hash in found if block_hash is not None]

    def add(
        self,
        block_hash: bytes,
        parent: int | None,
        depth: int,
        tokens: Sequence[int],
        extra_keys: list[object] | None,
    ) -> None:
        """Note a block that is not noted."""
        if self._spare:
            place = self._spare - 1
            self._spare = self._numbers[place]
            self._hashes[place] = block_hash
            self._numbers[place] = self.num_made
        else:
            place = len(self._hashes)
            self._hashes.append(block_hash)
            self._numbers.append(self.num_made)
        self.num_made += 1
        packed = array("I", tokens).tobytes()
        content = Content(parent, depth, packed, extra_keys, place)
        self._by_hash.tables[hash(block_hash) & LAST][block_hash] = content

    def remove(self, block_hash: bytes) -> Content:
        """Forget a block; return what it was made of."""
        content = self._by_hash.tables[hash(block_hash) & LAST].pop(block_hash)
        self._hashes[content.place] = None
        self._numbers[content.place] = self._spare
        self._spare = content.place + 1
        return content
