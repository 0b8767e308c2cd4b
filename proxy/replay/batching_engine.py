"""A simulated engine with continuous batching and chunked prefill.

A step gives every running stream one token, streams first, and computes as much of the
prompts as its budget leaves. Steps that only decode are all alike but for the context
that grows, so a run of them is one event: their times sum to a closed form, and
whoever comes meanwhile cuts the run at the end of the step under way. What a sequence
hits is decided when it is admitted; it is admitted when its whole prompt has room. When
the streams outgrow the memory, the newest sequence gives its own back and computes all
again later.
"""

from collections import deque
from math import inf

from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.kv_memory import KvMemory
from warmroute.proxy.replay.prefix_tree import PrefixTree
from warmroute.proxy.replay.sequence import Sequence
from warmroute.proxy.replay.streams import Streams


class BatchingEngine:
    """One engine; its next event is at `next_at`.

    Args:
        constants: How fast it is.
        memory: Its keys and values; oracles share one among engines.
        tree: The prompts.
        block_size: Tokens a block.

    Attributes:
        next_at: When the step or run under way ends; inf when nothing runs.
        num_preemptions: Sequences that had to give their memory back.
        busy_s: Seconds of all steps.
    """

    __slots__ = (
        "_block_size",
        "_chunks",
        "_constants",
        "_is_full",
        "_prefills",
        "_run_steps",
        "_running",
        "_started_at",
        "_streams",
        "_tree",
        "_waiting",
        "busy_s",
        "memory",
        "next_at",
        "num_preemptions",
    )

    def __init__(
        self,
        constants: EngineConstants,
        memory: KvMemory,
        tree: PrefixTree,
        block_size: int,
    ) -> None:
        self.memory = memory
        self.next_at = inf
        self.num_preemptions = 0
        self.busy_s = 0.0
        self._constants = constants
        self._tree = tree
        self._block_size = block_size
        self._waiting: deque[Sequence] = deque()
        self._running: dict[Sequence, None] = {}
        self._prefills: dict[Sequence, None] = {}
        self._streams = Streams(constants)
        self._chunks: list[tuple[Sequence, int]] = []
        self._run_steps = 0
        self._started_at = 0.0
        self._is_full = False

    def __repr__(self) -> str:
        return (
            f"<BatchingEngine {len(self._waiting)} wait, {len(self._prefills)} "
            f"prefill, {self._streams!r}, {self.memory!r}>"
        )

    def submit(self, sequence: Sequence, now: float) -> None:
        """Take in a request at *now*, not before the events so far. O(1)."""
        self._waiting.append(sequence)
        if self.next_at == inf:
            self._start(now)
        elif not self._chunks and not self._is_full:
            self._cut(now)

    def wake(self, now: float) -> None:
        """Try again to admit what waits, after others freed memory they share."""
        self._is_full = False
        if self.next_at == inf and self._waiting:
            self._start(now)

    def advance(self) -> tuple[list[Sequence], list[Sequence]]:
        """Let the step or run under way end, and begin the next.

        Returns:
            The sequences that gave their first token, and those that gave their last.
        """
        now = self.next_at
        self.busy_s += now - self._started_at
        self._pass_steps()
        done = self._end_streams()
        firsts: list[Sequence] = []
        for sequence, tokens in self._chunks:
            self._compute(sequence, tokens)
            if sequence.position == sequence.target:
                del self._prefills[sequence]
                if not sequence.generated:
                    sequence.first_token_at = now
                    firsts.append(sequence)
                if not self._begin_stream(sequence):
                    done.append(sequence)
        self.memory.trim()
        self._chunks = []
        self._start(now)
        return firsts, done

    def abandon(self) -> list[Sequence]:
        """Stop for good, and return what was under way or waited."""
        lost = [*self._running, *self._waiting]
        self._waiting.clear()
        self._running.clear()
        self.next_at = inf
        return lost

    def _pass_steps(self) -> None:
        """Count what the streams gained; the cache made room at every step."""
        memory, steps = self.memory, self._run_steps
        gained = self._streams.pass_steps(steps)
        last = gained // steps if steps else 0
        if gained > last:
            memory.private_tokens += gained - last
            memory.trim()
        memory.private_tokens += last

    def _end_streams(self) -> list[Sequence]:
        done: list[Sequence] = []
        while (sequence := self._streams.pop_ended()) is not None:
            self.memory.private_tokens -= self._streams.stop(sequence)
            self._release(sequence)
            done.append(sequence)
        return done

    def _begin_stream(self, sequence: Sequence) -> bool:
        """Let a stream begin; False when its one token was all."""
        left = sequence.arrival.request.output_tokens - sequence.generated - 1
        if left <= 0:
            self._release(sequence)
            return False
        self._streams.begin(sequence, left)
        return True

    def _compute(self, sequence: Sequence, tokens: int) -> None:
        """Add a chunk to a sequence; full blocks can be hit from now on."""
        memory, size, path = self.memory, self._block_size, sequence.path
        fresh = -self._end(sequence)
        sequence.position += tokens
        fresh += self._end(sequence)
        memory.promised_tokens -= fresh
        full = min(sequence.position // size, sequence.num_blocks)
        if full <= sequence.num_stored:
            memory.private_tokens += fresh
            return
        memory.private_tokens += fresh - (full - sequence.num_stored) * size
        sequence.num_stored = full
        ends, at = self._tree.ends, sequence.reached
        while True:
            if at >= 0:
                memory.store(path[at], full)
                if ends[path[at]] >= full:
                    break
            at += 1
            memory.hold(path[at])
            if at:
                memory.let_go(path[at - 1])
        sequence.reached = at

    def _end(self, sequence: Sequence) -> int:
        """Return how many tokens of a sequence have their memory already."""
        return max(sequence.position, sequence.num_stored * self._block_size)

    def _release(self, sequence: Sequence) -> None:
        """Give the memory of a sequence's prompt back, its blocks to the cache."""
        memory = self.memory
        end = self._end(sequence)
        memory.private_tokens -= end - sequence.num_stored * self._block_size
        memory.promised_tokens -= sequence.target - end
        if sequence.reached >= 0:
            memory.let_go(sequence.path[sequence.reached])
        del self._running[sequence]
        self._is_full = False

    def _start(self, now: float) -> None:
        """Begin the next step, or a run of steps that only decode."""
        self._started_at = now
        room = self._make_room()
        self._fill()
        if self._chunks:
            self._run_steps = 1
            self.next_at = now + self._step_s()
        elif self._streams.count:
            self._run_steps = self._streams.steps_left()
            if room is not None:
                most = max(1, room // self._streams.count)
                self._run_steps = min(self._run_steps, most)
            self.next_at = now + self._streams.run_s(self._run_steps)
        else:
            self._run_steps = 0
            self.next_at = inf

    def _make_room(self) -> int | None:
        """Preempt until every stream has room for a token; return what is free."""
        while True:
            free, count = self.memory.free_tokens, self._streams.count
            if free is None or free >= count or not count or len(self._running) == 1:
                return free
            self._preempt(next(reversed(self._running)))

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        request = sequence.arrival.request
        given = 0
        if sequence in self._prefills:
            del self._prefills[sequence]
        else:
            given = self._streams.stop(sequence)
            self.memory.private_tokens -= given
            given += 1
        self._release(sequence)
        sequence.generated += given
        sequence.target = request.prompt_tokens + sequence.generated
        sequence.position = sequence.num_stored = 0
        sequence.reached = -1
        self._waiting.appendleft(sequence)
        self._is_full = True

    def _fill(self) -> None:
        """Choose what is computed of prompts in the next step."""
        budget = self._constants.max_batched_tokens - self._streams.count
        for sequence in self._prefills:
            budget -= self._add_chunk(sequence, budget)
        most = self._constants.max_sequences
        while budget > 0 and self._waiting and len(self._running) < most:
            if self._is_full or not self._admit(self._waiting[0]):
                self._is_full = True
                return
            budget -= self._add_chunk(self._waiting.popleft(), budget)

    def _add_chunk(self, sequence: Sequence, budget: int) -> int:
        tokens = min(budget, sequence.target - sequence.position)
        if tokens <= 0:
            return 0
        self._chunks.append((sequence, tokens))
        return tokens

    def _admit(self, sequence: Sequence) -> bool:
        """Give a sequence what is cached, and room for the rest, if there is.

        Of a prompt that is cached whole the last block is computed again, in its place.
        """
        memory, size, path = self.memory, self._block_size, sequence.path
        stored = memory.matched_blocks(path)
        reached = self._tree.place(path, stored)
        if reached >= 0:
            memory.hold(path[reached])
        needed = sequence.target - stored * size
        free = memory.free_tokens
        if free is not None and needed + self._streams.count > free and self._running:
            if reached >= 0:
                memory.let_go(path[reached])
            return False
        memory.promised_tokens += needed
        sequence.reached, sequence.num_stored = reached, stored
        sequence.position = min(stored, (sequence.target - 1) // size) * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.position
        self._running[sequence] = self._prefills[sequence] = None
        return True

    def _step_s(self) -> float:
        constants = self._constants
        seconds = self._streams.step_s() + constants.sequence_s * len(self._chunks)
        for sequence, tokens in self._chunks:
            seconds += constants.prefill_s(tokens, sequence.position)
        return seconds

    def _cut(self, now: float) -> None:
        """End the run of decodes with the step that is under way at *now*."""
        steps = self._streams.steps_in(now - self._started_at)
        if steps < self._run_steps:
            self._run_steps = steps
            self.next_at = max(now, self._started_at + self._streams.run_s(steps))
