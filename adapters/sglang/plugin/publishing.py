"""The engine's KV events: counted, and published without waiting for a step."""

from collections.abc import Callable
from typing import Any


class Publishing:
    """Publish what a verb changed before it answers.

    SGLang numbers batches from 0 in another thread, in the order in which they are
    handed over, so counting them here gives the number before it is sent.

    Args:
        publish: Has the scheduler publish all that waits.
        publisher: What it hands batches to; None where events are off.
        num_before: Batches handed over before now.
    """

    __slots__ = ("_publish", "num_batches")

    def __init__(
        self,
        publish: Callable[[], None],
        publisher: Any,
        num_before: int,
    ) -> None:
        self._publish = publish
        self.num_batches = num_before
        if publisher is not None:
            publisher.publish = self._counted(publisher.publish)

    def __repr__(self) -> str:
        return f"<Publishing [Batches: {self.num_batches}]>"

    def announce(self) -> int | None:
        """Publish all that waits; return the last sequence number."""
        self._publish()
        return self.num_batches - 1 if self.num_batches else None

    def _counted(self, hand_over: Callable[[Any], None]) -> Callable[[Any], None]:
        def publish(batch: Any) -> None:
            hand_over(batch)
            self.num_batches += 1

        return publish
