"""Turn what happens to cached blocks into batches of KV events."""

from warmroute.adapters.embedded.engine.contents import (
    BlockContent,
    KVObserver,
    Medium,
)
from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.embedded.server.kv_wire import (
    SPEC_KIND,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
)


class EventLog(KVObserver):
    """Collect the events of a step, and publish them as one batch.

    Blocks of one chain that are stored one after the other become one event. Unlike
    vLLM, where events wait for the end of a scheduler step, they leave once it is
    planned, and what KV control changes leaves with the end of the call.

    Lives on the compute thread. A step without events publishes nothing.

    Args:
        publisher: Takes the batches.
        block_size: Tokens a block.
    """

    __slots__ = ("_block_size", "_chain", "_events", "_medium", "publisher")

    def __init__(self, publisher: KVEventPublisher, block_size: int) -> None:
        self.publisher = publisher
        self._block_size = block_size
        self._events: list[KVEvent] = []
        self._chain: list[BlockContent] = []
        self._medium: Medium = "GPU"

    def __repr__(self) -> str:
        waiting = len(self._events) + bool(self._chain)
        return f"<EventLog: {waiting} events waiting, {self.publisher!r}>"

    def stored(self, content: BlockContent, medium: Medium) -> None:
        """Append a block to the chain at hand, or begin another one."""
        chain = self._chain
        if chain and not (
            medium == self._medium and content.parent_hash == chain[-1].block_hash
        ):
            self._end_chain()
        self._medium = medium
        self._chain.append(content)

    def removed(self, block_hash: int, medium: Medium) -> None:
        """Note that a block left a tier; one event each, as vLLM sends them."""
        self._end_chain()
        self._events.append(BlockRemoved([block_hash], medium, 0))

    def cleared(self) -> None:
        """Note that every block left every tier."""
        self._end_chain()
        self._events.append(AllBlocksCleared())

    def batch_ended(self) -> None:
        """Publish what was noted since the last time."""
        self._end_chain()
        if self._events:
            events, self._events = self._events, []
            self.publisher.publish(events)

    def _end_chain(self) -> None:
        if self._chain:
            self._events.append(self._chain_event(self._chain, self._medium))
            self._chain = []

    def _chain_event(self, chain: list[BlockContent], medium: Medium) -> BlockStored:
        return BlockStored(
            block_hashes=[content.block_hash for content in chain],
            parent_block_hash=chain[0].parent_hash,
            token_ids=[token for content in chain for token in content.token_ids],
            block_size=self._block_size,
            lora_id=None,
            medium=medium,
            lora_name=None,
            extra_keys=[extra_keys(content) for content in chain],
            group_idx=0,
            kv_cache_spec_kind=SPEC_KIND,
        )


def extra_keys(content: BlockContent) -> list[str] | None:
    """Return what a block's hash covers besides tokens, as vLLM publishes it.

    The salt enters the chain at its head, so only the first block names it.
    """
    if content.cache_salt is None or content.parent_hash is not None:
        return None
    return [content.cache_salt]
