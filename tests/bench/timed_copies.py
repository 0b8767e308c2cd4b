"""Runs beside a worker of vLLM: how long copying out takes there."""

import time
from collections.abc import Callable
from typing import Any

Times = list[tuple[float, float]]


class Took:
    """Keep how long calls took: on the clock, and of the thread's CPU time."""

    def __init__(self) -> None:
        self.ms: Times = []

    def timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter(), time.thread_time()
            answer = function(*arguments)
            ended = time.perf_counter(), time.thread_time()
            self.ms.append((1e3 * (ended[0] - begun[0]), 1e3 * (ended[1] - begun[1])))
            return answer

        return timed


class TimedCopies:
    """Methods that a worker gets for the bench alone (``worker_extension_cls``)."""

    took: Took

    def time_copies(self) -> None:
        """From now on, keep how long each slice that is copied out takes."""
        from warmroute.adapters.vllm.plugin.copies import Copies

        self.took = Took()
        Copies._copy = self.took.timing(Copies._copy)  # type: ignore[method-assign]

    def times_of_copies(self) -> Times:
        return self.took.ms

    def do_nothing(self) -> None:
        """Only be asked."""
