"""The token budget of requests that ask for none."""

from msgspec import structs

from warmroute.adapters.embedded.budget.options import BudgetOptions, BudgetRefused
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.kv_control import BudgetState
from warmroute.adapters.kv_requests import BudgetRequest


def read_budget(state: EngineState) -> BudgetState:
    """Return the budget in force; ``full`` keeps every token."""
    budget = state.budget
    if budget is None:
        return BudgetState(method="full")
    general = BudgetState(
        method=budget.method,
        tokens=budget.tokens,
        share=budget.share,
        sinks=budget.sinks,
        recent=budget.recent,
    )
    if budget.method != "infinigen":
        return general
    return structs.replace(
        general,
        alpha=budget.alpha,
        partial=budget.partial,
        host_tokens=budget.host_tokens,
        victims=budget.victims,
    )


def change_budget(state: EngineState, request: BudgetRequest) -> BudgetState:
    """Set the budget of requests that come from now on; those that run keep theirs.

    Raises:
        ClientError: There is no such method, or a number does not go with it.
    """
    if request.host_bytes is not None:
        raise BudgetRefused(
            "host_bytes",
            f"{request.host_bytes} (allowed: with vLLM's plugin); host_tokens bounds "
            f"the host memory of infinigen, and other methods keep none",
        )
    given = {
        field: value
        for field, value in structs.asdict(request).items()
        if value is not None
    }
    state.budget = BudgetOptions(**given)
    return read_budget(state)
