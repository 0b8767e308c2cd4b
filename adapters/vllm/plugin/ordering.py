"""Which block eviction policy rules an engine, and how it changes."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.policy_queue import PolicyQueue
from warmroute.adapters.vllm.plugin.ports import Block, Pool
from warmroute.policies.eviction.registry import create, evictions

NATIVE = "lru"
"""vLLM's own order is this one, so its own queue serves for it."""

_SLICE = 8


class Ordering:
    """Put policies in the place of vLLM's queue, and take them out again.

    Args:
        pool: The engine's pool; its queue and its ``touch`` are replaced while a
            policy other than vLLM's is in force, and only then.
        contents: Tells policies about blocks.
        clock: Monotonic seconds.

    Attributes:
        options: Those of the policy in force.
    """

    __slots__ = ("_clock", "_contents", "_name", "_pool", "_touch", "options")

    def __init__(
        self,
        pool: Pool,
        contents: Contents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._contents = contents
        self._clock = clock
        self._touch = pool.touch
        self._name = NATIVE
        self.options: Mapping[str, object] = {}

    def __repr__(self) -> str:
        return f"<Ordering by {self.name}>"

    @property
    def name(self) -> str:
        """The policy in force; vLLM's own if another one failed."""
        queue = self._pool.free_block_queue
        if isinstance(queue, PolicyQueue) and queue.policy is None:
            return NATIVE
        return self._name

    def available(self) -> list[str]:
        """List the policies to be had."""
        return evictions.names()

    def change(self, name: str, options: Mapping[str, object]) -> Iterator[None]:
        """Put a policy in force; yields after each slice of pages that changed hands.

        Cached blocks stay. Those that the policy before ranked go first, in its
        order, until they are used again.

        Raises:
            PolicyError: No such policy, or not with these options.
        """
        queue = self._pool.free_block_queue
        capacity = self._pool.num_gpu_blocks
        policy = create(name, capacity, self._clock, **options)
        if isinstance(queue, PolicyQueue):
            queue.retire()
        if name != NATIVE or options:
            self._install(PolicyQueue(queue, policy, self._contents, self._pool.blocks))
        self._name, self.options = name, dict(options)
        yield from self._drain()

    def _install(self, queue: PolicyQueue) -> None:
        touch = self._touch

        def counted(blocks: Sequence[Block]) -> None:
            queue.touched(blocks)
            touch(blocks)

        self._pool.free_block_queue = queue
        self._pool.touch = counted

    def _drain(self) -> Iterator[None]:
        """Empty the queues that are on their way out, the oldest first."""
        while True:
            retired = self._retired()
            if retired is None:
                return
            while retired.drain(_SLICE):
                yield
            self._take_out(retired)
            yield from retired.dismantle()

    def _retired(self) -> PolicyQueue | None:
        """Return the innermost retired queue."""
        found, queue = None, self._pool.free_block_queue
        while isinstance(queue, PolicyQueue):
            found = queue if queue.is_retired else found
            queue = queue.native
        return found

    def _take_out(self, retired: PolicyQueue) -> None:
        queue = self._pool.free_block_queue
        if queue is retired:
            self._pool.free_block_queue = retired.native
            self._pool.touch = self._touch
            return
        while isinstance(queue, PolicyQueue):
            if queue.native is retired:
                queue.native = retired.native
                return
            queue = queue.native
