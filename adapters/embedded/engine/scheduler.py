"""Which tokens the next step computes, and who waits for pages.

Continuous batching (Yu et al. 2022, "Orca", section 4) with chunked prefill
(Agrawal et al. 2024, "Sarathi-Serve", section 4): a step has a budget of tokens.
Running sequences that decode get one each, what is left goes to prompts, in order of
priority and arrival. So long prompts slow the others down but do not stop them. Where
nothing decodes the first prompt may take more: large steps are cheaper a token.

Pages are taken for a whole prompt when it is admitted, and one by one for the tokens
generated. When none is left, the running sequence of the lowest priority that came
last gives up its own and is computed anew later (recomputation, Kwon et al. 2023,
section 4.5); its full blocks stay cached for as long as nobody needs the pages.

No thread, no clock: `Scheduler` only moves sequences between two sorted lists.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple, Protocol

from warmroute.adapters.embedded.engine.host_pages import PageStore
from warmroute.adapters.embedded.engine.prefix_cache import PrefixCache
from warmroute.adapters.embedded.engine.sequence import Sequence
from warmroute.policies.kv.pool import BlockPool, PoolExhausted

_key = attrgetter("key")


class Work(NamedTuple):
    """Compute *num_tokens* tokens of a sequence from `num_computed` on."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_sampled(self) -> bool:
        """Tell whether the last of these tokens is the last that is known."""
        return self.num_tokens == self.sequence.outstanding


class Plan:
    """What the next step does.

    Args:
        room: Tokens that it may compute.
        first_room: The same of the first to be added.
    """

    __slots__ = ("first_room", "preempted", "room", "unserved", "work")

    def __init__(self, room: int, first_room: int) -> None:
        self.room = room
        self.first_room = first_room
        self.work: list[Work] = []
        self.preempted: list[Sequence] = []
        self.unserved: list[Sequence] = []

    def __repr__(self) -> str:
        works = ", ".join(f"{one.sequence!r} + {one.num_tokens}" for one in self.work)
        return f"<Plan [{works}], {len(self.preempted)} preempted>"

    def add(self, sequence: Sequence) -> int:
        """Compute as much of *sequence* as there is room for; return how much."""
        room = self.room if self.work else self.first_room
        count = min(room, sequence.outstanding)
        if count:
            self.work.append(Work(sequence, count))
            self.room = max(0, self.room - count)
        return count


class Reservations(Protocol):
    """Say what a token budget needs beside the prompt's pages."""

    def pages_needed(self, sequence: Sequence) -> int:
        """Count the private pages of one sequence; 0 without a budget."""
        ...


class Scheduler:
    """Decide what runs; sequences are in *running*, in *waiting*, or gone.

    Args:
        pool: Pages of all sequences.
        cache: Finds the prefixes that are computed already.
        store: Copies shared pages that are about to be written.
        budgets: Private pages of sequences under a token budget.
        max_num_seqs: Sequences that run at the same time.
        max_batched_tokens: Tokens computed in a step.
        max_shared_tokens: The same where another sequence came first in it.
        let_go: Gives up pages that are kept for later requests; asked before a
            request is dropped for want of pages.
    """

    __slots__ = (
        "_budgets",
        "_cache",
        "_let_go",
        "_max_batched_tokens",
        "_max_num_seqs",
        "_max_shared_tokens",
        "_pool",
        "_store",
        "num_preemptions",
        "running",
        "waiting",
    )

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        store: PageStore,
        budgets: Reservations,
        max_num_seqs: int,
        max_batched_tokens: int,
        max_shared_tokens: int,
        let_go: Callable[[], object] = int,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._store = store
        self._budgets = budgets
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._max_shared_tokens = min(max_shared_tokens, max_batched_tokens)
        self._let_go = let_go
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_preemptions = 0

    def __repr__(self) -> str:
        running, waiting = len(self.running), len(self.waiting)
        return f"<Scheduler: {running} running, {waiting} waiting>"

    @property
    def is_idle(self) -> bool:
        """Tell whether there is nothing to compute."""
        return not (self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by priority and arrival."""
        insort(self.waiting, sequence, key=_key)

    def fork(self, first: Sequence) -> None:
        """Start the other sequences of a request whose prompt is computed.

        They share the prompt's pages; seats were kept for them at admission.
        """
        first.group.is_forked = True
        for other in first.group.sequences:
            if other is not first:
                other.table = first.table.fork(self._pool)
                other.scores = first.scores
                other.num_computed = first.num_computed
                other.num_registered = first.num_registered
                insort(self.running, other, key=_key)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and give its pages back."""
        if not _discard(self.running, sequence):
            _discard(self.waiting, sequence)
        for one in [sequence] if sequence.group.is_forked else sequence.group.sequences:
            one.release(self._pool)

    def schedule(self) -> Plan:
        """Plan a step: reserve pages, preempt, admit. O(running + admitted).

        The plan is empty only when nothing runs or waits, or what waits is in
        `Plan.unserved`: taken out because the pool cannot hold it even alone.
        """
        plan = Plan(self._max_shared_tokens, self._max_batched_tokens)
        for sequence in tuple(self.running):
            if sequence.missing and sequence not in plan.preempted:
                self._grow(sequence, plan)
        decodes_first = sorted(self.running, key=lambda one: one.outstanding > 1)
        self._cache.begin_step()
        for sequence in decodes_first:
            self._cache.register(sequence, plan.add(sequence))
        if not plan.preempted:
            self._admit(plan)
        if not plan.work and not self.running and self.waiting:
            self._admit_or_drop(plan)
        return plan

    def _grow(self, sequence: Sequence, plan: Plan) -> None:
        # In ascending order of keys, so that no victim was grown before.
        while not self._reserve(sequence):
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return

    def _reserve(self, sequence: Sequence) -> bool:
        try:
            copies = sequence.table.reserve(self._pool, sequence.missing)
        except PoolExhausted:
            return False
        for source, target in copies:
            self._store.copy_page(source, target)
        return True

    def _preempt(self, victim: Sequence, plan: Plan) -> None:
        self.remove(victim)
        self.add(victim)
        plan.preempted.append(victim)
        self.num_preemptions += 1

    def _admit(self, plan: Plan) -> None:
        seats = self._max_num_seqs - sum(one.seats for one in self.running)
        while self.waiting and plan.room:
            sequence = self.waiting[0]
            if sequence.seats > seats or not self._start(sequence):
                return
            seats -= sequence.seats
            del self.waiting[0]
            insort(self.running, sequence, key=_key)
            self._cache.register(sequence, plan.add(sequence))

    def _admit_or_drop(self, plan: Plan) -> None:
        # Nothing runs that could ever give pages back.
        self._let_go()
        while not plan.work and self.waiting:
            self._admit(plan)
            if not plan.work:
                plan.unserved.append(self.waiting[0])
                self.remove(self.waiting[0])

    def _start(self, sequence: Sequence) -> bool:
        # The prefix hit is decided here: later blocks of others do not count.
        pages = self._cache.match(sequence)
        if self._num_needed(sequence, pages) > self._pool.num_free:
            return False
        self._cache.start(sequence, pages)
        sequence.num_computed = sequence.table.num_tokens
        if self._reserve(sequence) and self._reserve_private(sequence):
            self._cache.count(sequence)
            return True
        sequence.release(self._pool)
        return False

    def _num_needed(self, sequence: Sequence, pages: list[int]) -> int:
        # Free pages that it takes: fresh ones, and cached ones that nobody uses. Asked
        # first, as a request that waits must not count as a use of its prefix.
        total = -(-len(sequence.tokens) // sequence.table.block_size)
        shared = sum(self._pool.refs(page) > 0 for page in pages)
        return total - shared + sequence.seats * self._budgets.pages_needed(sequence)

    def _reserve_private(self, sequence: Sequence) -> bool:
        # Taken at admission, as there is no way back once the prompt is computed.
        group = sequence.group
        taken = [sequence] if group.is_forked else group.sequences
        pages = self._budgets.pages_needed(sequence)
        try:
            for one in taken:
                one.private.reserve(self._pool, pages * one.private.block_size)
        except PoolExhausted:
            for one in taken:
                one.private.free(self._pool)
            return False
        return True


def _discard(items: list[Sequence], sequence: Sequence) -> bool:
    at = bisect_left(items, sequence.key, key=_key)
    if at < len(items) and items[at] is sequence:
        del items[at]
        return True
    return False
