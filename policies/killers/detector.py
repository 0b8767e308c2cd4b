"""Find what breaks prefixes, by looking at some of the prompts.

A prompt's text is cut into chunks. Those that most requests of its kind have are shared
text. Up to where the chain of chunks was met before, an engine can have it cached;
shared text behind that point is computed again, although it is the same each time: that
is lost, and whatever stands at the point is what breaks the prefix. A shared system
prompt followed by each user's own words loses nothing, however long the words are.

Nothing of a text is kept but hashes, keyed anew by each process, and one masked example
of at most 240 bytes for each kind and cluster.
"""

import os
from collections import OrderedDict
from typing import Final

from warmroute.policies.killers.chunks import Chunks
from warmroute.policies.killers.cluster import MIN_REQUESTS, Cluster
from warmroute.policies.killers.counts import ChunkCounts
from warmroute.policies.killers.killer import Killer
from warmroute.policies.killers.kinds import ORDERS, Kind, classify, classify_order
from warmroute.policies.killers.masks import mask
from warmroute.policies.killers.sites import Sites
from warmroute.policies.kv.seen import SeenBlocks

MAX_CLUSTERS: Final = 64
MAX_COUNTED_CHUNKS: Final = 16_384
MAX_SITES: Final = 1024
SEEN_SLOTS: Final = 2**17
SHARED: Final = 0.6
"""Text that more than this part of a cluster's requests have is shared text."""

REJOINED: Final = 0.75
"""Of the requests that part at one point, so many go on with the same shared text."""

MIN_LOST_TOKENS: Final = 64.0
_MIN_CHUNK_BYTES: Final = 16
_BEFORE_BYTES: Final = 48
_WITHIN_BYTES: Final = 144
_BEHIND_BYTES: Final = 48


class KillerDetector:
    """Look at prompts and remember what breaks their prefixes.

    Bounded: about 5 MiB in all, and 1 ms for the longest prompt.

    Args:
        secret: Key of the hashes; random when left out.
    """

    __slots__ = ("_clusters", "_counts", "_secret", "_seen", "_sites")

    def __init__(self, secret: int | None = None) -> None:
        self._secret = (
            int.from_bytes(os.urandom(8), "little") if secret is None else secret
        )
        self._counts = ChunkCounts(MAX_COUNTED_CHUNKS)
        self._seen = SeenBlocks(SEEN_SLOTS)
        self._clusters: OrderedDict[int, Cluster] = OrderedDict()
        self._sites = Sites(MAX_SITES)

    def __repr__(self) -> str:
        return f"<KillerDetector clusters={len(self._clusters)} {self._counts!r}>"

    def observe(
        self,
        text: bytes,
        root: int,
        bytes_per_token: float,
        now: float,
        weight: int = 1,
    ) -> None:
        """Look at a prompt.

        Args:
            text: Its canonical bytes.
            root: Separates caches: prompts of other roots share nothing with it.
            bytes_per_token: Of its model.
            now: Seconds.
            weight: Requests that it stands for: itself, and those not looked at.
        """
        chunks = Chunks(text, root ^ self._secret)
        if not chunks.ends:
            return
        num_seen = self._seen.prefix_seen(chunks.chains)
        self._seen.add(chunks.chains)
        sizes = _sizes(chunks)
        self._counts.add(sizes)
        anchor = self._anchor(sizes)
        num_shared = self._counts.get(anchor)
        cluster = self._clusters.get(anchor)
        if cluster is None:
            if num_shared < MIN_REQUESTS:
                return
            cluster = self._begin(anchor, now)
            # Those that made it known, which were about as long.
            cluster.count(len(chunks.text), now, MIN_REQUESTS - 1)
        cluster.count(len(chunks.text), now)
        self._clusters.move_to_end(anchor)
        if num_seen == len(chunks.ends) or num_shared < MIN_REQUESTS:
            return
        lost = self._lost(chunks, sizes, num_seen, SHARED * num_shared)
        size_bytes = sum(sizes[one] for one in chunks.hashes[num_seen:] if one in lost)
        tokens = size_bytes / bytes_per_token
        is_loss = tokens >= MIN_LOST_TOKENS
        site = chunks.chains[num_seen - 1] if num_seen else 0
        at = _resumes(chunks, num_seen, lost) if is_loss else num_seen
        share = self._sites.share(site, chunks.hashes[at] if is_loss else None)
        if not is_loss:
            return
        end = chunks.start(at) if at > num_seen else chunks.ends[at]
        kind = self._kind(chunks, sizes, num_seen, end, SHARED * num_shared)
        if kind is None or (kind not in ORDERS and share < REJOINED):
            return
        start = chunks.start(num_seen)
        place = int(start / bytes_per_token), _example(chunks.text, start, end)
        cluster.lose(kind, size_bytes, tokens, weight, *place)

    def killers(self, now: float) -> list[Killer]:
        """Return what is worth a word, the dearest first."""
        found = (one.killer(now) for one in self._clusters.values())
        return sorted(
            (one for one in found if one is not None), key=lambda one: -one.tokens_a_day
        )

    def _anchor(self, sizes: dict[int, int]) -> int:
        """Choose the chunk that names the cluster: long, and in many requests.

        What stands in front of each message is in all of them, and short.
        """
        count = self._counts.get
        long = [one for one, size in sizes.items() if size >= _MIN_CHUNK_BYTES]
        return max(long or sizes, key=lambda one: (count(one) * sizes[one], one))

    def _begin(self, anchor: int, now: float) -> Cluster:
        """Make a cluster, once its anchor has come often.

        The one used least recently goes for it, of those that lost nothing if any did.
        """
        clusters = self._clusters
        if len(clusters) >= MAX_CLUSTERS:
            oldest = next(iter(clusters))
            idle = (at for at, one in clusters.items() if not one.loses_anything(now))
            del clusters[next(idle, oldest)]
        cluster = clusters[anchor] = Cluster(f"{anchor >> 32:08x}", now)
        return cluster

    def _lost(
        self, chunks: Chunks, sizes: dict[int, int], num_seen: int, least: float
    ) -> set[int]:
        """Return the shared text that stands only behind the known chunks."""
        count, hashes = self._counts.get, chunks.hashes
        behind = set(hashes[num_seen:]).difference(hashes[:num_seen])
        return {
            one
            for one in behind
            if sizes[one] >= _MIN_CHUNK_BYTES and count(one) >= least
        }

    def _kind(
        self,
        chunks: Chunks,
        sizes: dict[int, int],
        num_seen: int,
        end: int,
        least: float,
    ) -> Kind | None:
        """Return what differs; None where nothing does that a client could mend."""
        count, hashes = self._counts.get, chunks.hashes
        start = chunks.start(num_seen)
        if count(hashes[num_seen]) < least:
            return classify(chunks.text, start, end)
        # Shared text in its usual place was forgotten here; in another one, what
        # stands before it must be shared, too: retrieved documents are not.
        before = (
            one for one in reversed(hashes[:num_seen]) if sizes[one] >= _MIN_CHUNK_BYTES
        )
        if not num_seen or count(next(before, hashes[0])) < least:
            return None
        return classify_order(chunks.text, start)


def _resumes(chunks: Chunks, num_seen: int, lost: set[int]) -> int:
    """Return the first lost chunk, behind what differs."""
    hashes = chunks.hashes
    return next(at for at in range(num_seen, len(hashes)) if hashes[at] in lost)


def _sizes(chunks: Chunks) -> dict[int, int]:
    """Return the bytes of each different chunk."""
    sizes, start = {}, 0
    for one, end in zip(chunks.hashes, chunks.ends, strict=True):
        sizes[one] = end - start
        start = end
    return sizes


def _example(text: bytes, start: int, end: int) -> str:
    before = mask(text[max(0, start - _BEFORE_BYTES) : start])
    within = mask(text[start : min(end, start + _WITHIN_BYTES)])
    cut = "..." if end - start > _WITHIN_BYTES else ""
    behind = mask(text[end : end + _BEHIND_BYTES])
    return f"{before}»{within}{cut}«{behind}"
