"""A cache without content for the tests of eviction policies, and its clock."""

from collections.abc import Callable

from warmroute.policies.eviction.adaptive import Adaptive
from warmroute.policies.eviction.arc import Arc
from warmroute.policies.eviction.base import BlockEviction, BlockFacts
from warmroute.policies.eviction.fifo import Fifo
from warmroute.policies.eviction.gdsf import Gdsf
from warmroute.policies.eviction.lfu import Lfu
from warmroute.policies.eviction.lrfu import Lrfu
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.eviction.s3fifo import S3Fifo
from warmroute.policies.eviction.workload_aware import WorkloadAware

POLICIES: tuple[type[BlockEviction], ...] = (
    Adaptive,
    Arc,
    Fifo,
    Gdsf,
    Lfu,
    Lrfu,
    Lru,
    S3Fifo,
    WorkloadAware,
)


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def facts(block: int) -> BlockFacts:
    """Lay the blocks out as chains of eight: the parent of 11 is 10, of 8 none."""
    depth = block % 8
    return BlockFacts(depth, block - 1 if depth else None, 8, 1 + block // 64)


class SingleBlockCache:
    """Serve single blocks: on a miss one is evicted if need be, then it comes in."""

    def __init__(
        self,
        policy: type[BlockEviction],
        capacity: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.capacity = capacity
        self.policy = policy(capacity=capacity, clock=clock or FakeClock())
        self.cached: set[int] = set()
        self.victims: list[int] = []

    def use(self, block: int) -> bool:
        """Use *block* once and tell whether it was cached."""
        if block in self.cached:
            self.policy.touched(block)
            return True
        if len(self.cached) >= self.capacity:
            victims = self.policy.evict(1)
            self.victims += victims
            self.cached.difference_update(victims)
        self.policy.inserted(block, facts(block))
        self.cached.add(block)
        return False
