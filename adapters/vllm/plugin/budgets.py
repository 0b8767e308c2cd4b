"""Blocks that running sequences give back to the pool, under a budget."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from warmroute.adapters.vllm.plugin.attention.choice import ask_masses, least_wanted
from warmroute.adapters.vllm.plugin.block_budget import BlockBudget, to_be_chosen_from
from warmroute.adapters.vllm.plugin.names import (
    BUDGET,
    GIVEN_BACK,
    HOLES,
    SCORES,
    WATCHED,
)
from warmroute.adapters.vllm.plugin.ports import Block, Pool, Workers

logger = logging.getLogger(__name__)

NEVER = 1 << 62
"""Blocks said to be cached already, so that vLLM caches no more of a sequence."""

Choose = Callable[[Sequence[int], int], Sequence[int]]
"""Choose so many of these blocks, which are in the order of the sequence."""


class Manager(Protocol):
    """Which blocks each request has (``FullAttentionManager``)."""

    block_size: int
    block_pool: Pool
    req_to_blocks: dict[str, list[Block]]
    num_cached_block: dict[str, int]


class Running(Protocol):
    """A request that is being run."""

    request_id: str
    num_computed_tokens: int
    num_prompt_tokens: int
    num_tokens_with_spec: int


class Limit:
    """Hold what one request may hold, and what it gave back."""

    __slots__ = ("is_scored", "num_first", "num_given", "num_held", "num_looked")

    def __init__(self, num_first: int, num_held: int, is_scored: bool = False) -> None:
        self.num_first = num_first
        self.num_held = num_held
        self.is_scored = is_scored
        self.num_given = 0
        self.num_looked = 0

    def __repr__(self) -> str:
        return f"<Limit [Blocks: {self.num_held}, given back: {self.num_given}]>"

    def is_new(self, needed: int) -> bool:
        """Whether there is a block more than when this was last asked."""
        is_new, self.num_looked = self.num_looked != needed, needed
        return is_new


@dataclass(frozen=True, slots=True)
class Over:
    """Say how many of which blocks a request has to give back."""

    name: str
    limit: Limit
    blocks: Sequence[int]
    count: int


def oldest(blocks: Sequence[int], count: int) -> Sequence[int]:
    """Choose the oldest: with the sinks kept, what StreamingLLM drops."""
    return blocks[:count]


class Budgets:
    """Have sequences give blocks back before each step, while they are decoded.

    A block that others use, or that is cached, only loses this sequence's reference.
    Nothing is changed in the scheduler before a budget is asked for.

    Args:
        scheduler: The engine's.
        choose: Which blocks go.

    Attributes:
        default: The budget of requests to come.
        workers: Reach the model; None until the engine is known.
        num_given: Blocks given back so far.
    """

    __slots__ = (
        "_choose",
        "_is_armed",
        "_is_watching",
        "_manager",
        "_scheduler",
        "default",
        "num_given",
        "workers",
    )

    def __init__(self, scheduler: Any, choose: Choose = oldest) -> None:
        self._scheduler = scheduler
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._manager: Manager = managers[0]
        self._choose = choose
        self._is_armed = False
        self._is_watching = False
        self.default: BlockBudget | None = None
        self.workers: Workers | None = None
        self.num_given = 0

    def __repr__(self) -> str:
        return f"<Budgets by {self.default!r}>"

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._manager.block_size

    def fault(self) -> str | None:
        """Ask the worker why it cannot skip blocks, if it cannot."""
        return self._ask_worker(HOLES, False)

    def arm(self, is_scored: bool = False) -> str | None:
        """Change scheduler and worker, once; say why it is impossible, if it is.

        Args:
            is_scored: Have the worker watch attention, too.
        """
        if not self._is_armed:
            fault = self._ask_worker(HOLES, True)
            if fault is not None:
                return fault
            scheduler = self._scheduler
            scheduler.add_request = self._admitting(scheduler.add_request)
            scheduler.schedule = self._scheduling(scheduler.schedule)
            self._is_armed = True
        if is_scored and not self._is_watching:
            fault = self._ask_worker(SCORES, True)
            self._is_watching = fault is None
            return fault
        return None

    def give_back(self) -> dict[str, list[int]]:
        """Give back what is over the budgets; tells which blocks of which request."""
        over = [one for one in map(self._over, self._scheduler.running) if one]
        scored = [one.name for one in over if one.limit.is_scored]
        masses = ask_masses(self.workers, scored)
        given: dict[str, list[int]] = {}
        for one in over:
            if one.limit.is_scored:
                seen = masses.get(one.name, ())
                chosen = sorted(least_wanted(one.blocks, one.count, seen))
            else:
                chosen = sorted(self._choose(one.blocks, one.count))
            self._give(one.name, chosen, one.limit)
            given[one.name] = chosen
        return given

    def _over(self, request: Running) -> Over | None:
        limit: Limit | None = getattr(request, BUDGET, None)
        if limit is None or not _is_decoded(request):
            return None
        manager, name = self._manager, request.request_id
        if limit.num_given and manager.num_cached_block.get(name) != NEVER:
            limit.num_given = limit.num_looked = 0  # preempted, so all anew
        needed = request.num_computed_tokens // manager.block_size + 1
        count = needed - limit.num_given - limit.num_held
        if count <= 0 or (limit.is_scored and not limit.is_new(needed)):
            return None
        blocks, null = manager.req_to_blocks[name], self._null
        some = to_be_chosen_from(blocks, null, limit.num_first, needed)
        if limit.is_scored:  # those of others cost nothing, and stay
            own = [at for at in some if blocks[at].ref_cnt == 1]
            some, count = own, count - (len(some) - len(own))
        return Over(name, limit, some, count) if count > 0 else None

    def _give(self, name: str, over: Sequence[int], limit: Limit) -> None:
        manager = self._manager
        blocks, null = manager.req_to_blocks[name], self._null
        pages = [blocks[at] for at in over]
        for at in over:
            blocks[at] = null
        # What is computed from now on has not seen everything before it.
        manager.num_cached_block[name] = NEVER
        manager.block_pool.free_blocks(reversed(pages))
        limit.num_given += len(pages)
        self.num_given += len(pages)

    @property
    def _null(self) -> Block:
        return cast(Block, cast(Any, self._manager.block_pool).null_block)

    def _admitting(self, admit: Callable[[Any], None]) -> Callable[[Any], None]:
        def add_request(request: Any) -> None:
            budget = self.default
            if budget is not None and _may_have_one(request):
                size = self._manager.block_size
                held = budget.num_held(request.num_prompt_tokens, size)
                limit = Limit(budget.num_first(size), held, budget.is_scored)
                setattr(request, BUDGET, limit)
            admit(request)

        return add_request

    def _scheduling(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        def schedule_within_budgets(*arguments: Any, **options: Any) -> Any:
            given = self.give_back()
            output = schedule(*arguments, **options)
            if given:
                setattr(output, GIVEN_BACK, given)
            begun = self._begun(output) if self._is_watching else ()
            if begun:
                setattr(output, WATCHED, begun)
            return output

        return schedule_within_budgets

    def _begun(self, output: Any) -> list[str]:
        """Return who is to be watched of those whose first tokens are computed."""
        begun = []
        for one in output.scheduled_new_reqs:
            request = self._scheduler.requests.get(one.req_id)
            limit: Limit | None = getattr(request, BUDGET, None)
            if limit is not None and limit.is_scored:
                begun.append(one.req_id)
        return begun

    def _ask_worker(self, method: str, is_armed: bool) -> str | None:
        if self.workers is None:
            return "unsupported: the engine is not known yet"
        try:
            answers = self.workers.collective_rpc(method, args=(is_armed,))
        except Exception as error:
            logger.exception("warmroute: the worker cannot be asked")
            return f"unsupported: the worker failed: {type(error).__name__}"
        return next((str(one) for one in answers if one is not None), None)


def budgets_fault(scheduler: Any) -> str | None:
    """Say why no sequence of this engine can have a budget, if so."""
    config, manager = scheduler.vllm_config, _manager(scheduler)
    spec = manager.kv_cache_spec
    parallel = config.parallel_config
    if scheduler.connector is not None:
        return "unsupported: a KV connector copies blocks of running sequences"
    if config.speculative_config is not None:
        return "unsupported: speculative decoding writes ahead of what is sure"
    if config.scheduler_config.async_scheduling:
        return "unsupported: steps are scheduled ahead; use --no-async-scheduling"
    if parallel.world_size > 1 or parallel.decode_context_parallel_size > 1:
        return f"unsupported: {parallel.world_size} workers (allowed: 1)"
    if type(manager).__name__ != "FullAttentionManager":
        return f"unsupported: the cache is kept by a {type(manager).__name__}"
    if type(spec).__name__ != "FullAttentionSpec":
        return f"unsupported: the cache is a {type(spec).__name__}"
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        return "unsupported: the model has a window of its own"
    return None


def _manager(scheduler: Any) -> Any:
    return scheduler.kv_cache_manager.coordinator.single_type_managers[0]


def _may_have_one(request: Any) -> bool:
    """Exclude what is no generation, and sessions, whose input goes on later."""
    return request.sampling_params is not None and not request.resumable


def _is_decoded(request: Running) -> bool:
    return (
        request.num_computed_tokens >= request.num_prompt_tokens
        and request.num_tokens_with_spec - request.num_computed_tokens == 1
    )
