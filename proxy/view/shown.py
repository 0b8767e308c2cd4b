"""What people and other parts of the proxy are shown of the view."""

from collections.abc import Sequence

from warmroute.policies.kv.outline import Node, outline
from warmroute.policies.kv.trunks import Survey, survey
from warmroute.proxy.view.mirrors import Mirrors
from warmroute.proxy.view.seats import Facts, together


class Shown(Mirrors):
    """The backends as the view knows them, told; see `View`."""

    __slots__ = ()

    def facts(self, name: str) -> dict[str, object]:
        """Return what `/api/state` shows of the view of a backend."""
        seats = self._seats.get(name, (name,))
        facts = [self._facts_of(seat) for seat in seats]
        return facts[0] if len(seats) == 1 else together(facts)

    def _facts_of(self, name: str) -> Facts:
        mirror = self._mirrors[name]
        facts: Facts = {
            "source": mirror.source if mirror.is_believed else "none",
            "blocks": self._index.blocks(mirror.gpu),
            "seq": None,
            "incarnation": mirror.incarnation,
            "gaps": 0,
            "replays": 0,
            "lag_s": None,
        }
        told = self._told.get(name)
        if told is not None:
            facts |= {**told(), "discount": mirror.trust.discount}
        return facts

    def stats(self) -> dict[str, int]:
        """Return the size of the index over all backends, and its cap."""
        index = self._index
        return {
            "bytes": index.num_bytes,
            "cap_bytes": index.max_bytes,
            "blocks": index.num_blocks,
        }

    def tree(self, name: str, depth: int, now: float | None = None) -> Node:
        """Return what a backend has as nested runs, *depth* levels deep.

        Ages count from *now*, or from the last use of anything.
        """
        seats = self._seats.get(name, (name,))
        return outline(self._index, seats, depth, self._stamp if now is None else now)

    def survey(self, names: Sequence[str], max_nodes: int, now: float) -> Survey:
        """Begin to look for the most used prefixes of the backends *names*.

        Ages count from *now*. See `warmroute.policies.kv.trunks`.
        """
        known = {
            name: self._seats.get(name, (name,))
            for name in names
            if name in self._mirrors
        }
        return survey(self._index, known, max_nodes, now)
