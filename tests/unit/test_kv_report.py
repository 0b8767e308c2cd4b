"""What ``warmroute kv`` prints, and when it has come to nothing."""

from typing import Any

import pytest

from warmroute.proxy.kv.report import came_to_nothing, report, stats

KEPT = [
    {"hash": 1, "reason": "followed"},
    {"hash": 2, "reason": "followed"},
    {"hash": 3, "reason": "referenced"},
]


def test_an_eviction_tells_what_was_kept_and_why() -> None:
    text = report("evict", {"a": {"evicted": [], "kept": KEPT}})
    assert text.splitlines() == [
        "backend  evicted  kept",
        "a        0        3 (2 followed, 1 referenced)",
    ]


def test_an_eviction_of_everything_keeps_none() -> None:
    text = report("evict", {"a": {"evicted": [7, 8], "kept": []}})
    assert text.splitlines()[1].split() == ["a", "2", "0"]


@pytest.mark.parametrize(
    ("verb", "answers"),
    [
        ("flush", [{"flushed": False, "dropped": 0, "referenced": 4}]),
        ("flush", [{"flushed": False, "dropped": None}, {"flushed": True}]),
        ("evict", [{"evicted": [], "kept": KEPT}, {"evicted": [], "kept": []}]),
        ("retain", [{"retained": 0, "named": 3, "total": 0, "cap": 9}]),
    ],
)
def test_what_came_to_nothing(verb: str, answers: list[Any]) -> None:
    assert came_to_nothing(verb, dict(zip("ab", answers, strict=False)))


@pytest.mark.parametrize(
    ("verb", "answers"),
    [
        ("flush", [{"flushed": False, "dropped": 3, "referenced": 4}]),
        ("flush", [{"flushed": True, "dropped": 0}]),
        ("evict", [{"evicted": [], "kept": KEPT}, {"evicted": [9], "kept": []}]),
        ("retain", [{"retained": 1, "named": 3, "total": 1, "cap": 9}]),
        ("demote", [{"changed": 0, "named": 1}]),
        ("policy", [{"name": "lru"}]),
        ("evict", []),
    ],
)
def test_what_did_something(verb: str, answers: list[Any]) -> None:
    assert not came_to_nothing(verb, dict(zip("ab", answers, strict=False)))


def test_the_caches_are_told_with_what_running_requests_have_on_the_host() -> None:
    state = {
        "backends": [
            {"name": name, "engine": "vllm", "state": "up", "kv": {}}
            for name in ("a", "b")
        ]
    }
    block = {"hash": 1, "parent": None, "refs": 1, "tier": "gpu"}
    snapshot = {"seq": 3, "block_size": 16, "blocks": [block]}
    results = {"a": {**snapshot, "copied_bytes": 3 << 20}, "b": snapshot}
    head, *rows = stats(state, results).splitlines()
    assert head.split()[-2:] == ["tokens", "copied"]
    assert [row.split()[-3:] for row in rows] == [
        ["16", "3.0", "MiB"],
        ["1", "16", "-"],
    ]
