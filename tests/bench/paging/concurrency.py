"""Concurrency: how many requests of a backlog run at once in the same memory.

A backlog is worked off in order of arrival: a request starts as soon as its memory
is to be had, decodes a token a step, and leaves. Prefill takes no step. Paged requests
take pages as they grow; a new one leaves 1 % of the pages free, as in vLLM, and when
there are none the latest to arrive is preempted and waits again at the front. Steps
count until the backlog is empty.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lengths import Request

from warmroute.policies.kv.block_table import BlockTable
from warmroute.policies.kv.pool import BlockPool, PoolExhausted


@dataclass(slots=True)
class Load:
    """How full one way of memory got."""

    steps: int = 0
    running_sum: int = 0
    peak: int = 0
    preemptions: int = 0

    def count(self, running: int) -> None:
        """Take note of one step."""
        self.steps += 1
        self.running_sum += running
        self.peak = max(self.peak, running)

    def row(self) -> dict[str, float]:
        """Return the figures of the table."""
        mean = self.running_sum / max(self.steps, 1)
        return {"mean": mean, "peak": self.peak, "preemptions": self.preemptions}


@dataclass(slots=True)
class Job:
    """One running request."""

    request: Request
    table: BlockTable
    done: int = 0


@dataclass(slots=True)
class PagedRun:
    """Work off a backlog in a block pool."""

    pool: BlockPool
    backlog: deque[Job]
    shares_prefixes: bool
    running: list[Job] = field(default_factory=list)
    load: Load = field(default_factory=Load)

    def work(self) -> Load:
        """Run until nothing waits."""
        while self.backlog:
            self._admit()
            if self.backlog:
                self.load.count(len(self.running))
            self._decode()
        for job in self.running:
            job.table.free(self.pool)
        assert self.pool.num_referenced == 0, "pages leaked"
        return self.load

    def _admit(self) -> None:
        while self.backlog and self._start(self.backlog[0]):
            self.running.append(self.backlog.popleft())

    def _start(self, job: Job) -> bool:
        request, size = job.request, self.pool.block_size
        hashes = request.page_hashes(size) if self.shares_prefixes else []
        pages = self.pool.lookup(hashes)
        job.table.adopt(self.pool, pages, len(pages) * size)
        tokens = request.prompt_tokens + job.done - job.table.num_tokens
        try:
            job.table.reserve(self.pool, tokens)
        except PoolExhausted:
            job.table.free(self.pool)
            return False
        if self.running and self.pool.num_free < self.pool.num_pages // 100:
            job.table.free(self.pool)
            return False
        for depth in range(len(pages), len(hashes)):
            parent = hashes[depth - 1] if depth else None
            self.pool.register(job.table.pages[depth], hashes[depth], parent, depth)
        return True

    def _decode(self) -> None:
        position = 0
        while position < len(self.running):
            job = self.running[position]
            if not self._grow(job):
                return
            if job.done < job.request.output_tokens:
                position += 1
            else:
                job.table.free(self.pool)
                del self.running[position]

    def _grow(self, job: Job) -> bool:
        """Append a token, preempting from the end; False when it was itself."""
        while True:
            try:
                job.table.reserve(self.pool, 1)
            except PoolExhausted:
                victim = self.running.pop()
                victim.table.free(self.pool)
                self.backlog.appendleft(victim)
                self.load.preemptions += 1
                if victim is job:
                    return False
            else:
                job.done += 1
                return True


def paged(
    requests: Sequence[Request],
    memory_tokens: int,
    block_size: int,
    *,
    shares_prefixes: bool,
) -> Load:
    """Work off *requests* with block tables, whose pages may be shared."""
    pool = BlockPool(memory_tokens // block_size + 1, block_size)
    backlog = deque(Job(request, BlockTable(block_size)) for request in requests)
    return PagedRun(pool, backlog, shares_prefixes).work()


def slabs(
    requests: Sequence[Request],
    memory_tokens: int,
    slab_of: Callable[[Request], int],
) -> Load:
    """Work off *requests* with one slab each; gaps between slabs are not counted."""
    load, free, backlog = Load(), memory_tokens, deque(requests)
    running: list[tuple[int, int]] = []
    while backlog:
        while backlog and slab_of(backlog[0]) <= free:
            request = backlog.popleft()
            free -= slab_of(request)
            running.append((load.steps + request.output_tokens, slab_of(request)))
        if backlog:
            load.count(len(running))
        free += sum(slab for end, slab in running if end <= load.steps)
        running = [entry for entry in running if entry[0] > load.steps]
    return load
