"""Time a decision of each policy, and the life of a reservation.

    python tests/bench/policies.py

Prints microseconds a decision of CPU (best of 7 runs) for 8, 64 and 512 candidates that
all differ in load and match, then the cost of counting one request.
"""

from collections.abc import Callable
from random import Random
from time import process_time
from timeit import repeat

from warmroute.policies.registry import policies
from warmroute.policies.routing.base import Candidate, build
from warmroute.policies.routing.load import FleetLoad

SIZES = (8, 64, 512)


def busy_fleet(count: int) -> tuple[FleetLoad, list[Candidate]]:
    """Make a fleet in which every backend decodes, prefills and holds a prefix."""
    rng = Random(count)
    load = FleetLoad()
    candidates = [load.add(f"backend-{i}", "model|vllm|gpu") for i in range(count)]
    for one in candidates:
        for _ in range(rng.randrange(1, 12)):
            load.reserve(one, 2000, rng.randrange(100, 2000), 10.0)
        for reservation in list(one.waiting)[::2]:
            reservation.first_token(10.0 + rng.random())
        one.matched_tokens = 16 * rng.randrange(100)
    return load, candidates


def best_us(work: Callable[[], object], number: int) -> float:
    """Return the microseconds of one call of CPU in the best of seven runs."""
    return min(repeat(work, timer=process_time, number=number, repeat=7)) / number * 1e6


def main() -> None:
    """Print the table."""
    print(f"{'us a decision':<20}" + "".join(f"{size:>9}" for size in SIZES))
    for name in policies.names():
        row = f"{name:<20}"
        for size in SIZES:
            load, candidates = busy_fleet(size)
            policy = build(name)
            query = load.query(2000, 12.0, "session-1", candidates[0])
            us = best_us(
                lambda p=policy, q=query, c=candidates: p.choose(q, c),  # type: ignore[misc]
                16_000 // size,
            )
            row += f"{us:>9.2f}"
        print(row)
    load, candidates = busy_fleet(8)
    first = candidates[0]

    def count_one_request() -> None:
        load.query(2000, 12.0, None, first)
        reservation = load.reserve(first, 2000, 500, 12.0)
        reservation.first_token(12.1)
        reservation.release(13.0, 100)

    us = best_us(count_one_request, 2000)
    print(f"query, reserve, first_token, release: {us:.2f} us a request")
    load, _ = busy_fleet(512)
    us = best_us(lambda: load.refresh(12.0), 20)
    print(f"refresh of 512 rates: {us:.0f} us a second")


if __name__ == "__main__":
    main()
