"""A naive engine that batches: every step on its own, every block on its own."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.trace import TraceRequest


@dataclass(eq=False)
class Job:
    """A request on the naive engine, and what came of it."""

    request: TraceRequest
    target: int
    position: int = 0
    stored: int = 0
    held: list[int] = field(default_factory=list)
    gained: int = 0
    given: int = 0
    is_decoding: bool = False
    cached: int | None = None
    first_at: float | None = None
    end_at: float | None = None


class NaiveEngine:
    """The model in its plainest form: O(blocks) and O(sequences) for every step."""

    def __init__(self, constants: EngineConstants, block_size: int, capacity: int):
        self.constants = constants
        self.size = block_size
        self.capacity = capacity
        self.resident: dict[int, int] = {}
        self.pins: Counter[int] = Counter()
        self.clock = 0
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.is_full = False
        self.num_preemptions = 0

    def run(self, requests: Sequence[TraceRequest]) -> list[Job]:
        """Serve *requests*, which are in time order."""
        jobs = [Job(one, one.prompt_tokens) for one in requests]
        coming, now = list(jobs), 0.0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = max(now, coming[0].request.time_s)
            while coming and coming[0].request.time_s <= now:
                self.waiting.append(coming.pop(0))
            now = self.step(now)
        return jobs

    def free(self) -> int:
        held = sum(1 for block in self.resident if self.pins[block]) * self.size
        promised = sum(job.target - self.end(job) for job in self.running)
        return self.capacity - held - self.private() - promised

    def end(self, job: Job) -> int:
        """Return how many tokens have their memory: a hit is computed in its place."""
        return max(job.position, job.stored * self.size)

    def private(self) -> int:
        return sum(
            self.end(job) - job.stored * self.size + job.gained for job in self.running
        )

    def step(self, now: float) -> float:
        decoding = [job for job in self.running if job.is_decoding]
        while self.free() < len(decoding) and len(self.running) > 1:
            self.preempt(self.running[-1])
            decoding = [job for job in self.running if job.is_decoding]
        chunks = self.plan(len(decoding))
        end = now + self.seconds(decoding, chunks)
        for job in decoding:
            job.given += 1
            job.gained += 1
            if job.given == job.request.output_tokens:
                job.end_at = end
                self.release(job)
        for job, tokens in chunks:
            self.compute(job, tokens)
            if job.position == job.target:
                if job.first_at is None:
                    job.first_at = end
                job.given += 1
                job.is_decoding = True
                if job.given >= job.request.output_tokens:
                    job.end_at = end
                    self.release(job)
        self.trim()
        return end

    def plan(self, num_decoding: int) -> list[tuple[Job, int]]:
        budget = self.constants.max_batched_tokens - num_decoding
        chunks = []
        for job in [job for job in self.running if not job.is_decoding]:
            tokens = min(budget, job.target - job.position)
            if tokens > 0:
                chunks.append((job, tokens))
                budget -= tokens
        while (
            budget > 0
            and self.waiting
            and len(self.running) < self.constants.max_sequences
            and not self.is_full
        ):
            job = self.waiting[0]
            if not self.admit(job, num_decoding):
                self.is_full = True
                break
            self.waiting.pop(0)
            tokens = min(budget, job.target - job.position)
            chunks.append((job, tokens))
            budget -= tokens
        return chunks

    def admit(self, job: Job, num_decoding: int) -> bool:
        matched = 0
        for block in job.request.blocks:
            if block not in self.resident:
                break
            matched += 1
        hit = list(job.request.blocks[:matched])
        self.pins.update(hit)
        needed = job.target - matched * self.size
        if needed + num_decoding > self.free() and self.running:
            self.let_go(hit)
            return False
        job.held, job.stored = hit, matched
        job.position = min(matched, (job.target - 1) // self.size) * self.size
        if job.cached is None:
            job.cached = job.position
        self.running.append(job)
        return True

    def compute(self, job: Job, tokens: int) -> None:
        job.position += tokens
        full = min(job.position // self.size, len(job.request.blocks))
        for block in job.request.blocks[job.stored : full]:
            self.resident.setdefault(block, 0)
            self.pins[block] += 1
            job.held.append(block)
        job.stored = max(job.stored, full)

    def let_go(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.pins[block] -= 1
            self.clock += 1
            self.resident[block] = self.clock

    def release(self, job: Job) -> None:
        self.let_go(job.held)
        self.running.remove(job)
        self.is_full = False

    def preempt(self, job: Job) -> None:
        self.num_preemptions += 1
        self.release(job)
        job.target = job.request.prompt_tokens + job.given
        job.position = job.stored = job.gained = 0
        job.is_decoding = False
        job.held = []
        self.waiting.insert(0, job)
        self.is_full = True

    def trim(self) -> None:
        while len(self.resident) * self.size + self.private() > self.capacity:
            loose = [block for block in self.resident if not self.pins[block]]
            if not loose:
                return
            del self.resident[min(loose, key=self.resident.__getitem__)]

    def seconds(self, decoding: Sequence[Job], chunks: list[tuple[Job, int]]) -> float:
        constants = self.constants
        seconds = constants.step_s
        seconds += constants.sequence_s * (len(decoding) + len(chunks))
        for job in decoding:
            seconds += constants.context_s_per_token * (job.target + job.gained)
        for job, tokens in chunks:
            seconds += constants.prefill_s_per_token * tokens
            for token in range(tokens):
                context = job.position + token + 1
                seconds += constants.attention_s_per_pair * context
        return seconds
