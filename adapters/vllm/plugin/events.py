"""The engine's KV events: counted, and published without waiting for a step."""

from collections.abc import Callable, Iterable, Sequence

from warmroute.adapters.vllm.plugin.ports import Batch, Publisher


class CountedPublisher:
    """Pass batches on, and know the sequence number of the last one.

    vLLM numbers batches from 0 in another thread, in the order in which they are
    handed over, so counting them here gives the number before it is sent.

    Args:
        publisher: Publishes; asked for everything else, too.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.last_seq: int | None = None

    def __repr__(self) -> str:
        return f"<CountedPublisher {self.last_seq} of {self._publisher!r}>"

    def __getattr__(self, name: str) -> object:
        return getattr(self._publisher, name)

    def publish(self, events: Batch) -> None:
        """Hand a batch over."""
        self._publisher.publish(events)
        self.last_seq = 0 if self.last_seq is None else self.last_seq + 1


class Announcer:
    """Publish what a verb changed before it answers.

    Args:
        sources: Hand over the events that wait, those of pages before the host's.
        publisher: Takes them, the one that the scheduler uses.
        batch: Makes a batch of events.
    """

    __slots__ = ("_batch", "_publisher", "_sources")

    def __init__(
        self,
        sources: Sequence[Callable[[], Iterable[object] | None]],
        publisher: CountedPublisher,
        batch: Callable[[list[object]], Batch],
    ) -> None:
        self._sources = sources
        self._publisher = publisher
        self._batch = batch

    def __repr__(self) -> str:
        return f"<Announcer {self._publisher!r}>"

    def announce(self) -> int | None:
        """Publish all that waits; return the last sequence number."""
        events = [event for take in self._sources for event in take() or ()]
        if events:
            self._publisher.publish(self._batch(events))
        return self._publisher.last_seq
