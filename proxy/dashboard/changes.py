"""What is new in a state, so that a page need not get all of it every second."""

from collections.abc import Mapping
from typing import Any

State = Mapping[str, Any]


def changes(before: State, after: State) -> dict[str, Any]:
    """Return what to lay over *before* to get *after*.

    Keys that changed, whole; of ``backends`` a list with the name and the changed keys
    of each, and the order of all names when that has changed. ``dropped`` are the keys
    that are gone. O(size of the state).
    """
    told = {key: value for key, value in after.items() if before.get(key) != value}
    old = {one["name"]: one for one in before["backends"]}
    if "backends" in told:
        told["backends"] = [
            {"name": one["name"], **fields}
            for one in after["backends"]
            if (fields := _changed(old.get(one["name"], {}), one))
        ]
    names = [one["name"] for one in after["backends"]]
    if names != list(old):
        told["order"] = names
    dropped = [key for key in before if key not in after]
    if dropped:
        told["dropped"] = dropped
    return told


def _changed(before: State, after: State) -> dict[str, Any]:
    return {
        key: value
        for key, value in after.items()
        if key not in before or before[key] != value
    }
