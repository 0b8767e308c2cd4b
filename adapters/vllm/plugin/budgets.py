"""Blocks that running sequences give back to the pool, under a budget."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from warmroute.adapters.vllm.plugin.block_budget import BlockBudget, to_be_chosen_from
from warmroute.adapters.vllm.plugin.names import BUDGET, GIVEN_BACK, HOLES
from warmroute.adapters.vllm.plugin.ports import Block, Pool

logger = logging.getLogger(__name__)

NEVER = 1 << 62
"""Blocks said to be cached already, so that vLLM caches no more of a sequence."""

Choose = Callable[[Sequence[int], int], Sequence[int]]
"""Choose so many of these blocks, which are in the order of the sequence."""


class Workers(Protocol):
    """The processes that run the model (``Executor``)."""

    def collective_rpc(self, method: str, *, args: tuple[object, ...]) -> list[object]:
        """Call a method of every worker."""
        ...


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

    __slots__ = ("num_first", "num_given", "num_held")

    def __init__(self, num_first: int, num_held: int) -> None:
        self.num_first = num_first
        self.num_held = num_held
        self.num_given = 0

    def __repr__(self) -> str:
        return f"<Limit [Blocks: {self.num_held}, given back: {self.num_given}]>"


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
        return self._ask_worker(False)

    def arm(self) -> str | None:
        """Change scheduler and worker, once; say why it is impossible, if it is."""
        if self._is_armed:
            return None
        fault = self._ask_worker(True)
        if fault is None:
            scheduler = self._scheduler
            scheduler.add_request = self._admitting(scheduler.add_request)
            scheduler.schedule = self._scheduling(scheduler.schedule)
            self._is_armed = True
        return fault

    def give_back(self) -> dict[str, list[int]]:
        """Give back what is over the budgets; tells which blocks of which request."""
        given: dict[str, list[int]] = {}
        for request in self._scheduler.running:
            limit = getattr(request, BUDGET, None)
            if limit is not None and _is_decoded(request):
                over = self._over(request, limit)
                if over:
                    self._give(request.request_id, over, limit)
                    given[request.request_id] = over
        return given

    def _over(self, request: Running, limit: Limit) -> list[int]:
        manager, name = self._manager, request.request_id
        if manager.num_cached_block.get(name) != NEVER:  # preempted, so all anew
            limit.num_given = 0
        needed = request.num_computed_tokens // manager.block_size + 1
        count = needed - limit.num_given - limit.num_held
        if count <= 0:
            return []
        blocks, null = manager.req_to_blocks[name], self._null
        some = to_be_chosen_from(blocks, null, limit.num_first, needed)
        return sorted(self._choose(some, count))

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
                setattr(request, BUDGET, Limit(budget.num_first(size), held))
            admit(request)

        return add_request

    def _scheduling(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        def schedule_within_budgets(*arguments: Any, **options: Any) -> Any:
            given = self.give_back()
            output = schedule(*arguments, **options)
            if given:
                setattr(output, GIVEN_BACK, given)
            return output

        return schedule_within_budgets

    def _ask_worker(self, is_armed: bool) -> str | None:
        if self.workers is None:
            return "unsupported: the engine is not known yet"
        try:
            answers = self.workers.collective_rpc(HOLES, args=(is_armed,))
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
