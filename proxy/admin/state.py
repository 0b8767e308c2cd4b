"""What the admin server reads and drives, and the JSON it makes of it."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from aiohttp.web import RouteDef
from prometheus_client import CollectorRegistry

from warmroute.adapters.kv_control import VERBS
from warmroute.policies.kv.trunks import Survey
from warmroute.proxy.dashboard.advice import advise
from warmroute.proxy.ledger import Ledger

_BLOCK_SIZE = 16  # of an engine that does not tell


class LoadFacts(Protocol):
    """The load of one backend, as the router has reserved it."""

    @property
    def requests(self) -> int:
        """Requests in flight."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens that wait for their first token."""
        ...

    @property
    def decodes(self) -> int:
        """Streams that have their first token."""
        ...


class BreakerFacts(Protocol):
    """The circuit breaker of one backend, as far as it is shown."""

    @property
    def state(self) -> str:
        """One of closed, open, half_open."""
        ...


class BackendFacts(Protocol):
    """What is shown of one backend."""

    @property
    def name(self) -> str:
        """Its unique name."""
        ...

    @property
    def url(self) -> str:
        """Where it listens."""
        ...

    @property
    def engine(self) -> str:
        """Its software, such as vllm."""
        ...

    @property
    def state(self) -> str:
        """One of starting, up, down, draining."""
        ...

    @property
    def breaker(self) -> BreakerFacts:
        """What failed requests have made of it."""
        ...

    @property
    def incarnation(self) -> int:
        """Changes with every restart of the engine."""
        ...

    @property
    def block_size(self) -> int | None:
        """Tokens a block, when known."""
        ...

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that its KV cache holds, when known."""
        ...

    @property
    def kv_usage(self) -> float | None:
        """Share of its KV cache in use, when known."""
        ...

    @property
    def load(self) -> LoadFacts:
        """Its load, over all ranks."""
        ...


class FleetPort(Protocol):
    """The fleet, as far as the admin server drives it."""

    @property
    def backends(self) -> Mapping[str, BackendFacts]:
        """All configured backends by name."""
        ...

    def drain(self, name: str) -> None:
        """Give *name* no new requests."""
        ...

    async def remove(self, name: str) -> None:
        """Forget *name*."""
        ...


class ViewPort(Protocol):
    """The view, as far as it is shown."""

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return source, blocks and so on of *name*'s view."""
        ...

    def tree(self, name: str, depth: int, now: float) -> Any:
        """Return *name*'s prefixes as nested runs, *depth* levels deep."""
        ...

    def survey(self, names: Sequence[str], max_nodes: int, now: float) -> Survey:
        """Begin to look for the most used prefixes of all backends."""
        ...


class IndexFacts(NamedTuple):
    """The size of the prefix index over all backends."""

    bytes: int
    cap_bytes: int
    blocks: int


class Learned(NamedTuple):
    """What was learned of a backend's speed; None before anything was."""

    prefill_tokens_per_s: float | None
    itl_s: float | None


@dataclass(slots=True)
class ReloadStatus:
    """Whether the last load of the configuration was good, and when one was."""

    is_good: bool = True
    last_good_time: float = field(default_factory=time.time)

    def succeeded(self) -> None:
        """Note a good load."""
        self.is_good = True
        self.last_good_time = time.time()

    def failed(self) -> None:
        """Note a load that was refused."""
        self.is_good = False


def no_kv_control(name: str) -> Mapping[str, bool | str]:
    """Answer for a backend that has no KV control."""
    return dict.fromkeys(VERBS, "this version of warmroute has no KV control")


def no_cache_killers(block_size: int) -> list[dict[str, Any]]:
    """Answer where nobody looks for cache killers."""
    return []


def nothing_learned(name: str) -> Learned:
    """Answer for a backend of which nothing was learned."""
    return Learned(None, None)


@dataclass(slots=True, kw_only=True)
class AdminState:
    """Everything that `make_admin` needs, wired by the application.

    Args:
        explain: Takes path, headers (names in lower case) and body of a request;
            returns the decision it would get now, and sends nothing.
        add_backend: Takes one entry of the configuration's ``backends`` as JSON and
            returns the new backend's name; raises ConfigError.
        cache_killers: Takes tokens a block; returns what breaks prefixes, as JSON.
        reload: Loads the configuration again; raises ConfigError with all lines.
        not_followed: Returns why KV events that a backend publishes are not followed;
            None when they are, or there are none.
        kv: Returns for each verb of KV control that a backend has it, or why not.
        routes: Further routes, behind the same guard.
        host: Where the admin server listens; loopback needs no token.
        token: Required as a bearer token when set.
    """

    version: str
    ledger: Ledger
    fleet: FleetPort
    view: ViewPort
    registry: CollectorRegistry
    index: Callable[[], IndexFacts]
    policy: Callable[[], str]
    is_ready: Callable[[], bool]
    explain: Callable[[str, Mapping[str, str], bytes], Awaitable[dict[str, Any]]]
    add_backend: Callable[[Mapping[str, Any]], str]
    reload: Callable[[], Awaitable[None]]
    learned: Callable[[str], Learned] = nothing_learned
    not_followed: Callable[[str], str | None] = lambda name: None
    kv: Callable[[str], Mapping[str, bool | str]] = no_kv_control
    cache_killers: Callable[[int], list[dict[str, Any]]] = no_cache_killers
    routes: Sequence[RouteDef] = ()
    queue: Callable[[], dict[str, Any] | None] = lambda: None
    shadow: Callable[[], dict[str, Any] | None] = lambda: None
    host: str = "127.0.0.1"
    token: str | None = None
    clock: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)

    def overview(self) -> dict[str, Any]:
        """Return the JSON of ``/api/state``."""
        totals = self.ledger.totals
        state = {
            "version": self.version,
            "policy": self.policy(),
            "uptime_s": self.clock() - self.started,
            "ready": self.is_ready(),
            "backends": self.backends(),
            "index": self.index()._asdict(),
            "tokens": {
                "prompt": totals.snapshot().prompt,
                **totals.snapshot()._asdict(),
            },
            "paid_twice_ratio": totals.paid_twice_ratio,
            "cache_killers": self.cache_killers(self._least_block_size()),
            "queue": self.queue(),
            "shadow": self.shadow(),
        }
        return {**state, "warnings": advise(state)}

    def tree(self, name: str, depth: int) -> Any:
        """Return what a backend has as nested runs, *depth* levels deep."""
        return self.view.tree(name, depth, self.clock())

    def survey(self, max_nodes: int) -> Survey:
        """Begin a survey of the prefixes of all backends."""
        return self.view.survey(list(self.fleet.backends), max_nodes, self.clock())

    def _least_block_size(self) -> int:
        sizes = (one.block_size for one in self.fleet.backends.values())
        return min((size for size in sizes if size), default=_BLOCK_SIZE)

    def backends(self) -> list[dict[str, Any]]:
        """Return the JSON of every configured backend."""
        return [self._backend(backend) for backend in self.fleet.backends.values()]

    def _backend(self, backend: BackendFacts) -> dict[str, Any]:
        load = backend.load
        return {
            "name": backend.name,
            "url": _without_credentials(backend.url),
            "engine": backend.engine,
            "state": backend.state,
            "breaker": backend.breaker.state,
            "block_size": backend.block_size,
            "capacity_tokens": backend.capacity_tokens,
            "kv_usage": None if backend.state == "down" else backend.kv_usage,
            "view": self._view(backend),
            "load": {
                "requests": load.requests,
                "prefill_tokens": load.prefill_tokens,
                "decodes": load.decodes,
            },
            "learned": self.learned(backend.name)._asdict(),
            "kv": dict(self.kv(backend.name)),
        }

    def _view(self, backend: BackendFacts) -> dict[str, Any]:
        blank: dict[str, Any] = {"source": "none", "blocks": 0, "gaps": 0, "replays": 0}
        blank |= {"seq": None, "lag_s": None}
        facts = self.view.facts(backend.name)
        # The view counts what it was told anew; the fleet's number is logged.
        told: dict[str, Any] = {"incarnation": backend.incarnation}
        if backend.state == "down":  # what was heard last is not how things are
            told["lag_s"] = None
        if "ranks" in facts:
            told["ranks"] = [{**one, **told} for one in facts["ranks"]]
        if (reason := self.not_followed(backend.name)) is not None:
            told["not_followed"] = reason
        return {**blank, **facts, **told}


def _without_credentials(url: str) -> str:
    """Return *url* without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
