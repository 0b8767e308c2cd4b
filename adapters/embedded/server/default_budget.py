"""The token budget of requests that ask for none."""

from typing import cast

from warmroute.adapters.embedded.budget.options import BudgetOptions, Method
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.kv_control import BudgetState
from warmroute.adapters.kv_requests import BudgetRequest


def read_budget(state: EngineState) -> BudgetState:
    """Return the budget in force; ``full`` keeps every token."""
    budget = state.budget
    if budget is None:
        return BudgetState(method="full")
    return BudgetState(
        method=budget.method,
        tokens=budget.tokens,
        share=budget.share,
        sinks=budget.sinks,
        recent=budget.recent,
    )


def change_budget(state: EngineState, request: BudgetRequest) -> BudgetState:
    """Set the budget of requests that come from now on; those that run keep theirs.

    Raises:
        ClientError: There is no such method, or a number does not go with it.
    """
    state.budget = BudgetOptions(
        method=cast(Method, request.method),
        tokens=request.tokens,
        share=request.share,
        sinks=request.sinks,
        recent=request.recent,
    )
    return read_budget(state)
