"""The KV events of all backends: who is heard, and what becomes of it."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import zmq
import zmq.asyncio

from warmroute.adapters.base import Endpoint
from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.kv_events.socket import ask_again
from warmroute.adapters.kv_events.subscriptions import Subscription, Subscriptions
from warmroute.policies.errors import AdapterError
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.prompt.roots import event_root
from warmroute.proxy.view.snapshots import largest_bytes
from warmroute.proxy.view.stream import Stream
from warmroute.proxy.view.track import Track
from warmroute.proxy.view.turns import Turns
from warmroute.proxy.view.view import View

_SNAPSHOT_S = 30.0
_APART = "make each rank a backend of its own"
_DISTRUST = {
    "degrade": "it had less than it announced; `warmroute doctor` examines it",
    "silent": "it announced no block of its prompts; see `warmroute doctor`",
}

logger = logging.getLogger(__name__)


class Feed:
    """The events of one rank of a backend, from the subscription to the index.

    Attributes:
        num_reborn: Restarts that its events have proved, or that it was told of.
    """

    __slots__ = ("_member", "address", "backend", "num_reborn", "stream")

    def __init__(
        self, backend: str, stream: Stream, member: Subscription, address: EventAddress
    ) -> None:
        self.backend = backend
        self.stream = stream
        self.address = address
        self.num_reborn = 0
        self._member = member

    def __repr__(self) -> str:
        return f"<Feed {self.stream!r}>"

    def leave(self, subscriptions: Subscriptions) -> None:
        """Stop hearing; nothing is entered any more."""
        subscriptions.remove(self._member)
        self.stream.stop()


class Feeds:
    """Follow the events of every backend that publishes some.

    A backend is heard once its engine has said where it publishes, or the
    configuration says so, and its models are known: their names are part of what
    blocks are known by. It is heard until it goes, whatever becomes of its health.
    Each data-parallel rank is heard for itself, under what it is called as a candidate.

    Args:
        view: Learns who announces its own blocks.
        index: Where the blocks go.
        endpoint_of: Returns where a backend takes control calls.
        on_restart: Is told of a backend whose events prove that it started anew.
    """

    __slots__ = (
        "_async_context",
        "_closing",
        "_context",
        "_endpoint_of",
        "_feeds",
        "_index",
        "_is_telling",
        "_on_restart",
        "_reasons",
        "_refused",
        "_subscriptions",
        "_turns",
        "_view",
    )

    def __init__(
        self,
        view: View,
        index: PrefixIndex,
        endpoint_of: Callable[[Backend], Endpoint | None],
        on_restart: Callable[[Backend], None],
    ) -> None:
        self._on_restart = on_restart
        self._is_telling = False
        self._view = view
        self._index = index
        self._endpoint_of = endpoint_of
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._async_context = zmq.asyncio.Context.shadow(self._context)
        self._turns = Turns()
        self._subscriptions = Subscriptions(self._context, self._turns.hurry)
        self._feeds: dict[str, Feed] = {}
        self._refused: dict[str, EventAddress] = {}
        self._reasons: dict[str, str] = {}
        self._closing: set[asyncio.Task[None]] = set()
        view.on_distrust, view.hear = self._distrusted, self._subscriptions.look

    def __repr__(self) -> str:
        return f"<Feeds {list(self._feeds)} {self._subscriptions!r}>"

    def learned(self, backend: Backend) -> None:
        """Follow a backend whose engine has told what there is to follow."""
        if not backend.models:
            return
        addresses = _addresses(backend)
        if not addresses and backend.event_sources:
            self._complain(backend)
        for seat, feed in self._of(backend.name):
            if addresses.get(seat) != feed.address:
                self._leave(seat)
                if seat in [one.name for one in backend.candidates]:
                    self._view.mirror_again(seat)
        for seat, address in addresses.items():
            if seat not in self._feeds and self._refused.get(seat) != address:
                self._follow(backend, seat, address)

    def not_followed(self, backend: Backend) -> str | None:
        """Say why events that a backend publishes are not followed."""
        reasons = (self._reasons.get(one.name) for one in backend.candidates)
        return next(filter(None, reasons), None) if backend.event_sources else None

    def restarted(self, backend: Backend) -> None:
        """Forget what an engine told that is no more."""
        self._forgive(backend)
        if self._is_telling:  # the streams know it best, and found it out
            return
        feeds = [feed for _, feed in self._of(backend.name)]
        most = max((feed.num_reborn for feed in feeds), default=0)
        for feed in feeds:
            feed.num_reborn = most
            feed.stream.restart()

    def removed(self, backend: Backend) -> None:
        """Stop hearing a backend that is gone."""
        self._forgive(backend)
        for seat, _ in self._of(backend.name):
            self._leave(seat)

    def streams(self) -> Mapping[str, Sequence[Stream]]:
        """Return the streams of every backend that is heard, by name."""
        streams: dict[str, list[Stream]] = {}
        for feed in self._feeds.values():
            streams.setdefault(feed.backend, []).append(feed.stream)
        return streams

    async def close(self) -> None:
        """Stop hearing, and release all sockets."""
        for name in list(self._feeds):
            self._leave(name)
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._subscriptions.close()
        self._context.destroy(linger=0)

    def _forgive(self, backend: Backend) -> None:
        for candidate in backend.candidates:
            self._refused.pop(candidate.name, None)
            self._reasons.pop(candidate.name, None)

    def _of(self, backend: str) -> list[tuple[str, Feed]]:
        return [one for one in self._feeds.items() if one[1].backend == backend]

    def _follow(self, backend: Backend, name: str, address: EventAddress) -> None:
        tiers = self._view.announce(name, partial(self._facts, name))
        track = Track(
            self._index,
            tiers,
            partial(_root, backend),
            partial(self._view.heard, name),
            partial(self._view.announced_gone, name),
            partial(self._view.cleared, name),
        )
        self._view.verify_by(name, track.was_removed)
        stream = Stream(
            name,
            address,
            track,
            partial(ask_again, self._async_context),
            None if backend.ranks else partial(self._snapshot, backend),
            self._view.stamp,
            turns=self._turns,
            on_restart=partial(self._reborn, backend, name),
        )
        try:
            member = self._subscriptions.add(
                address, stream.received, stream.turned, lambda: stream.is_full
            )
        except AdapterError as error:
            self._view.mirror_again(name)
            self._refuse(name, address, str(error))
            return
        self._feeds[name] = Feed(backend.name, stream, member, address)
        self._reasons.pop(name, None)
        stream.start()
        extra = {"backend": name, "endpoint": address.endpoint}
        logger.info("kv_events_subscribed", extra=extra)

    def _reborn(self, backend: Backend, name: str) -> None:
        """Tell of a restart that a rank's events prove, and no other's have."""
        feed = self._feeds.get(name)
        if feed is None:
            return
        most = max(one.num_reborn for _, one in self._of(backend.name))
        feed.num_reborn += 1
        if feed.num_reborn > most:
            self._is_telling = True
            try:
                self._on_restart(backend)
            finally:
                self._is_telling = False

    async def _snapshot(self, backend: Backend) -> Snapshot | None:
        endpoint = self._endpoint_of(backend)
        if endpoint is None:
            return None
        most = largest_bytes(backend.capacity_tokens, backend.block_size)
        return await backend.adapter.snapshot(endpoint.allowing(most, _SNAPSHOT_S))

    def _refuse(self, name: str, address: EventAddress, reason: str) -> None:
        self._refused[name], self._reasons[name] = address, reason
        extra = {"backend": name, "reason": reason}
        logger.warning("kv_events_not_followed", extra=extra)

    def _complain(self, backend: Backend) -> None:
        sources = backend.event_sources
        if self._refused.get(backend.name) != sources[0]:
            reason = (
                f"{len(sources)} publishers of ranks that cannot be chosen; {_APART}"
            )
            self._refuse(backend.name, sources[0], reason)

    def _leave(self, name: str) -> None:
        feed = self._feeds.pop(name, None)
        if feed is not None:
            # At once, for what it was entered under may be another's in a moment.
            feed.leave(self._subscriptions)
            task = asyncio.create_task(feed.stream.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _distrusted(self, name: str, verdict: str) -> None:
        feed = self._feeds.get(name)
        if feed is None:
            return
        logger.warning("kv_view_distrusted", extra={"backend": name, "action": verdict})
        if verdict == "resync":
            feed.stream.restart()
        else:
            self._refused[name] = feed.address
            self._reasons[name] = _DISTRUST[verdict]
            self._leave(name)
            self._view.mirror_again(name)

    def _facts(self, name: str) -> dict[str, object]:
        feed = self._feeds.get(name)
        if feed is None:
            return {}
        stream, sequencer = feed.stream, feed.stream.sequencer
        return {
            "seq": stream.seq,
            "gaps": sequencer.num_gaps,
            "replays": stream.num_replays,
            "lag_s": stream.lag_s,
            "status": stream.status,
            "orphans": stream.track.num_orphans,
        }


def _addresses(backend: Backend) -> dict[str, EventAddress]:
    """Return where each rank publishes, by what it is called as a candidate.

    Of a backend whose ranks cannot be told apart it is where all do, if that is one
    address.
    """
    sources, ranks = backend.event_sources, backend.ranks
    if ranks:
        seats = [one.name for one in backend.candidates]
        return {seats[ranks.index(one.rank)]: one for one in sources}
    return {backend.name: sources[0]} if len(sources) == 1 else {}


def _root(backend: Backend, lora: str | None, salt: str | None) -> int:
    return event_root(backend.models, lora, salt)
