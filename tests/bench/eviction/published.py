"""Hit percentages of the project's first simulator, to compare with."""

CAPACITIES_M = (1, 3, 6, 12)

TREES = frozenset({"lrfu"})
"""Policies that were trees there: they never gave up a block of the prompt at hand."""

IDEAL = {"conversation": 36.64, "agentic": 96.04}

HITS: dict[str, dict[str, tuple[float, ...]]] = {
    "conversation": {
        "fifo": (5.3, 12.5, 20.1, 27.0),
        "lru": (5.3, 13.6, 22.8, 30.4),
        "lfu": (5.9, 9.7, 14.2, 23.2),
        "s3fifo": (7.7, 15.3, 20.6, 27.4),
        "arc": (6.8, 14.4, 24.1, 29.7),
        "gdsf": (7.6, 16.1, 24.4, 30.7),
        "workload_aware": (9.8, 16.6, 23.4, 30.9),
        "lrfu": (11.0, 18.1, 24.9, 31.5),
        "belady": (25.3, 35.3, 36.6, 36.6),
    },
    "agentic": {
        "fifo": (21.9, 61.4, 84.0, 93.0),
        "lru": (22.7, 67.8, 90.9, 96.0),
        "lfu": (16.3, 22.7, 30.0, 42.7),
        "s3fifo": (35.5, 65.2, 89.5, 95.5),
        "arc": (35.4, 68.2, 90.7, 95.9),
        "gdsf": (25.7, 63.2, 87.2, 94.9),
        "lrfu": (30.7, 61.3, 84.8, 95.4),
        "belady": (55.4, 84.6, 95.2, 96.0),
    },
}
"""By trace and policy, at 1, 3, 6 and 12 million tokens."""


def published(trace: str, policy: str, capacity_m: float) -> float | None:
    """Return the earlier figure of a cell, where there is one."""
    row = HITS.get(trace, {}).get(policy)
    if row is None or capacity_m not in CAPACITIES_M:
        return None
    return row[CAPACITIES_M.index(int(capacity_m))]
