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
from warmroute.policies.killers.kinds import ORDERS
from warmroute.policies.killers.parting import MIN_CHUNK_BYTES, Parting
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
        cluster = self._enter(anchor, num_shared, len(chunks.text), now)
        is_known = num_seen == len(chunks.ends)
        if cluster is None or is_known or num_shared < MIN_REQUESTS:
            return
        least = SHARED * num_shared
        parting = Parting(chunks, sizes, num_seen, self._counts.get, least)
        self._judge(cluster, parting, bytes_per_token, weight)

    def killers(self, now: float) -> list[Killer]:
        """Return what is worth a word, the dearest first."""
        found = (one.killer(now) for one in self._clusters.values())
        return sorted(
            (one for one in found if one is not None), key=lambda one: -one.tokens_a_day
        )

    def _judge(
        self, cluster: Cluster, parting: Parting, bytes_per_token: float, weight: int
    ) -> None:
        """Blame what stands where a prompt parts, if shared text is lost behind it."""
        size_bytes = parting.lost_bytes()
        tokens = size_bytes / bytes_per_token
        if tokens < MIN_LOST_TOKENS:
            self._sites.share(parting.site, None)
            return
        rejoined, end = parting.rejoins()
        share = self._sites.share(parting.site, rejoined)
        kind = parting.kind(end)
        if kind is None or (kind not in ORDERS and share < REJOINED):
            return
        place = int(parting.start / bytes_per_token), parting.example(end)
        cluster.lose(kind, size_bytes, tokens, weight, *place)

    def _anchor(self, sizes: dict[int, int]) -> int:
        """Choose the chunk that names the cluster: long, and in many requests.

        What stands in front of each message is in all of them, and short.
        """
        count = self._counts.get
        long = [one for one, size in sizes.items() if size >= MIN_CHUNK_BYTES]
        return max(long or sizes, key=lambda one: (count(one) * sizes[one], one))

    def _enter(
        self, anchor: int, num_shared: int, size_bytes: int, now: float
    ) -> Cluster | None:
        """Count a prompt in its cluster; None while too few have come for one."""
        cluster = self._clusters.get(anchor)
        if cluster is None:
            if num_shared < MIN_REQUESTS:
                return None
            cluster = self._begin(anchor, now)
            # Those that made it known, which were about as long.
            cluster.count(size_bytes, now, MIN_REQUESTS - 1)
        cluster.count(size_bytes, now)
        self._clusters.move_to_end(anchor)
        return cluster

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


def _sizes(chunks: Chunks) -> dict[int, int]:
    """Return the bytes of each different chunk."""
    sizes, start = {}, 0
    for one, end in zip(chunks.hashes, chunks.ends, strict=True):
        sizes[one] = end - start
        start = end
    return sizes
