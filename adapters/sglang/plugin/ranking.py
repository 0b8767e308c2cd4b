"""Who is evicted first: a strategy of SGLang's own, with victims in front of it."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from warmroute.adapters.sglang.plugin.ports import Core, Node
from warmroute.policies.errors import PolicyError


class Strategy(Protocol):
    """Gives each node a priority; the least is evicted (``EvictionStrategy``)."""

    def get_priority(self, node: Node) -> Any:
        """Return what orders *node*."""
        ...


Make = Callable[[str, dict[str, object] | None], Strategy]


class RankedStrategy:
    """Order as another strategy does, but demoted nodes come before all others.

    A node is demoted until somebody uses it again.

    Args:
        inner: The strategy that orders the rest.
    """

    __slots__ = ("_demoted", "inner")

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self._demoted: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<RankedStrategy [Demoted: {len(self._demoted)}] {self.inner!r}>"

    def get_priority(self, node: Node) -> tuple[int, Any]:
        """Return 0 for a demoted node and 1 for others, before its own priority."""
        demoted_at = self._demoted.get(node.id)
        is_first = demoted_at is not None and demoted_at == node.last_access_time
        return (0 if is_first else 1, self.inner.get_priority(node))

    def demote(self, node: Node) -> None:
        """Make a node one of the next victims."""
        self._demoted[node.id] = node.last_access_time

    def forget(self, alive: Iterable[int]) -> None:
        """Forget nodes that are no more."""
        known = set(alive)
        self._demoted = {at: t for at, t in self._demoted.items() if at in known}


class Ranking:
    """Read and change who is evicted first.

    SGLang builds its queue of victims anew at each eviction, so a change holds from the
    next one. Only who orders it has to be looked up again.

    Args:
        core: The tree, whose strategy is wrapped.
        name: What the engine was started with.
        options: Its options.
        names: All that may be chosen.
        make: Builds a strategy of SGLang.
    """

    __slots__ = ("_core", "_make", "_ranked", "name", "names", "options")

    def __init__(
        self,
        core: Core,
        name: str,
        options: dict[str, object],
        names: Iterable[str],
        make: Make,
    ) -> None:
        self._core = core
        self._make = make
        self._ranked: RankedStrategy | None = None
        self.name = name
        self.options = options
        self.names = sorted(names)

    def __repr__(self) -> str:
        return f"<Ranking {self.name}>"

    def change(self, name: str, options: dict[str, object]) -> None:
        """Choose another strategy; what was demoted is so no more.

        Raises:
            PolicyError: There is none of this name, or it refuses the options.
        """
        if name not in self.names:
            raise PolicyError(
                f"eviction policy {name[:40]!r} (allowed: {', '.join(self.names)})"
            )
        try:
            inner = self._make(name, options or None)
        except (TypeError, ValueError) as error:
            raise PolicyError(f"eviction policy {name}: {error}") from error
        self._ranked = None
        self._put(inner)
        self.name, self.options = name, options

    def demote(self, nodes: Iterable[Node]) -> None:
        """Make nodes the next victims."""
        ranked = self._ranked
        if ranked is None:
            ranked = self._ranked = RankedStrategy(self._core.eviction_strategy)
            self._put(ranked)
        ranked.forget(self._core._node_arena)
        for node in nodes:
            ranked.demote(node)

    def _put(self, strategy: Strategy) -> None:
        self._core.eviction_strategy = strategy
        for component in self._core.components:
            if not self._core.enable_session_radix_cache:
                component.session_ref_eviction_strategy = None
