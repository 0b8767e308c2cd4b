"""CPU time of a piece of work, without what the machine did beside it."""

from collections.abc import Callable
from gc import disable, enable, isenabled
from time import process_time


def cpu_us(work: Callable[[], object], number: int, reps: int) -> float:
    """Return the microseconds of one call: the best of *reps* means over *number*."""
    was_enabled, best = isenabled(), float("inf")
    disable()
    try:
        for _ in range(reps):
            start = process_time()
            for _ in range(number):
                work()
            best = min(best, (process_time() - start) / number)
    finally:
        if was_enabled:
            enable()
    return 1e6 * best
