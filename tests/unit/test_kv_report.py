"""What ``warmroute kv`` prints, and when it has come to nothing."""

from typing import Any

import pytest

from warmroute.proxy.kv.report import came_to_nothing, report

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
