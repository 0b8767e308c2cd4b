"""Blocks that running sequences give back to the pool, under a budget."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from warmroute.adapters.vllm.plugin.attention.choice import ask_masses, least_wanted
from warmroute.adapters.vllm.plugin.block_budget import (
    BlockBudget,
    refused_budget,
    to_be_chosen_from,
)
from warmroute.adapters.vllm.plugin.filling import Filling
from warmroute.adapters.vllm.plugin.kept import KeptBlocks
from warmroute.adapters.vllm.plugin.limits import (
    NEVER,
    Limit,
    Manager,
    Over,
    Running,
    has_holes,
    num_needed,
)
from warmroute.adapters.vllm.plugin.names import (
    BUDGET,
    COPIES,
    GIVEN_BACK,
    HOLES,
    SCORES,
    WATCHED,
)
from warmroute.adapters.vllm.plugin.ports import Block, Workers

logger = logging.getLogger(__name__)

Choose = Callable[[Sequence[int], int], Sequence[int]]
"""Choose so many of these blocks, which are in the order of the sequence."""


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
        filling: Pages that are being filled for those that get blocks back.
        kept: What of the blocks given back is copied.
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
        "filling",
        "kept",
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
        self.filling = Filling(self._manager.block_pool)
        self.kept = KeptBlocks()
        self.workers: Workers | None = None
        self.num_given = 0

    def __repr__(self) -> str:
        return f"<Budgets by {self.default!r}>"

    @property
    def manager(self) -> Manager:
        """Which blocks each request has."""
        return self._manager

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

    def keep(self, cap_bytes: int) -> str | None:
        """Copy what is given back, within so many bytes; say why not, if so.

        Raises:
            ClientError: 400, not one block fits.
        """
        kept = self.kept
        if not kept.block_bytes:
            answer = self.ask_worker(COPIES, ())
            if isinstance(answer, str):
                return answer
            kept.block_bytes, kept.parts = cast(tuple[int, int], answer)
        if cap_bytes < kept.block_bytes:
            raise refused_budget(
                "host_bytes",
                f"{cap_bytes} (allowed here: {kept.block_bytes}, one block, or more)",
            )
        kept.cap_bytes = cap_bytes
        return None

    def give_back(self) -> dict[str, list[int]]:
        """Give back what is over the budgets; tells which blocks of which request.

        What is copied goes in slices, one a step, and a block only when all of it is
        copied.
        """
        over = [one for one in map(self._over, self._scheduler.running) if one]
        scored = [one.name for one in over if one.limit.is_scored]
        masses = ask_masses(self.workers, scored)
        given: dict[str, list[int]] = {}
        left = self.kept.slice_blocks
        for one in over:
            count = one.count
            is_copied = one.limit.is_copied and self.kept.may_copy(one.name)
            if is_copied:
                count = min(count, left)
                left -= count
            chosen = self._chosen(one, count, masses) if count else []
            if is_copied and chosen and not self.kept.add(one.name, chosen):
                chosen = []
            if len(chosen) < one.count:
                one.limit.look_again()
            if chosen:
                self._give(one.name, chosen, one.limit)
                given[one.name] = chosen
        return given

    def _chosen(
        self, one: Over, count: int, masses: Mapping[str, Sequence[float]]
    ) -> list[int]:
        begun = self.kept.begun(one.name)
        if begun is not None:
            return [begun]
        if one.limit.is_scored:
            seen = masses.get(one.name, ())
            return sorted(least_wanted(one.blocks, count, seen))
        return sorted(self._choose(one.blocks, count))

    def _over(self, request: Running) -> Over | None:
        limit: Limit | None = getattr(request, BUDGET, None)
        if limit is None or not _is_decoded(request):
            return None
        manager, name = self._manager, request.request_id
        limit.settle(not has_holes(manager, name))
        needed = num_needed(request, manager.block_size)
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
                is_copied = budget.host_bytes is not None
                first = budget.num_first(size)
                limit = Limit(first, held, budget.is_scored, is_copied)
                setattr(request, BUDGET, limit)
            admit(request)

        return add_request

    def _scheduling(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        def schedule_within_budgets(*arguments: Any, **options: Any) -> Any:
            self.filling.drop_ended(self._is_over)
            self.kept.drop_ended(self._is_over)
            given = self.give_back()
            output = schedule(*arguments, **options)
            self.kept.tell(output)
            if given:
                setattr(output, GIVEN_BACK, given)
            begun = self._begun(output) if self._is_watching else ()
            if begun:
                setattr(output, WATCHED, begun)
            return output

        return schedule_within_budgets

    def _is_over(self, name: str) -> bool:
        """Whether a request has ended, or was computed anew, since it had copies."""
        manager = self._manager
        if self.kept.begun(name) is not None and name in manager.req_to_blocks:
            return False
        return not has_holes(manager, name)

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
        answer = self.ask_worker(method, (is_armed,))
        return None if answer is None else str(answer)

    def ask_worker(self, method: str, arguments: tuple[object, ...]) -> object:
        """Return what the only worker answers; in words why it does not."""
        if self.workers is None:
            return "unsupported: the engine is not known yet"
        try:
            (answer,) = self.workers.collective_rpc(method, args=arguments)
        except Exception as error:
            logger.exception("warmroute: the worker cannot be asked")
            return f"unsupported: the worker failed: {type(error).__name__}"
        return answer


def _may_have_one(request: Any) -> bool:
    """Exclude what is no generation, and sessions, whose input goes on later."""
    return request.sampling_params is not None and not request.resumable


def _is_decoded(request: Running) -> bool:
    return (
        request.num_computed_tokens >= request.num_prompt_tokens
        and request.num_tokens_with_spec - request.num_computed_tokens == 1
    )
