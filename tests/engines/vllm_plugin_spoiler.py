"""Runs beside a worker of vLLM: spoils copies, and looks inside. Of the tests alone."""

import time
from collections.abc import Callable
from typing import Any


class Spoiler:
    """Methods that the worker gets besides its own (``--worker-extension-cls``)."""

    model_runner: Any

    def spoil_copies(self) -> dict[str, int]:
        """Have all copies say something else.

        Blocks that change their places among each other would be no spoiling: their
        keys know their positions, and attention is a sum over all of them.
        """
        for held in self.model_runner._warmroute_copies._copies.values():
            for at, layers in held.items():
                held[at] = [-4 * layer for layer in layers]
        return self.count_copies()

    def count_copies(self) -> dict[str, int]:
        copies = self.model_runner._warmroute_copies._copies
        return {"blocks": sum(map(len, copies.values()))}

    def last_positions(self) -> dict[str, int]:
        requests = self.model_runner.requests
        return {name: one.num_computed_tokens for name, one in requests.items()}

    def slow_down(self, step_s: float) -> dict[str, float]:
        """Have each step take so much longer from now on, as a large model does."""
        runner = self.model_runner
        runner.__dict__.pop("execute_model", None)
        if step_s:
            runner.execute_model = _slowed(runner.execute_model, step_s)
        return {"step_s": step_s}


def _slowed(step: Callable[..., Any], step_s: float) -> Callable[..., Any]:
    def execute_model(*arguments: Any, **options: Any) -> Any:
        time.sleep(step_s)
        return step(*arguments, **options)

    return execute_model
