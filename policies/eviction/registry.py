"""The block eviction policies by name, built-in and installed."""

from collections.abc import Callable

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.base import BlockEviction
from warmroute.policies.registry import Registry, explain_unknown
from warmroute.policies.routing.base import options as read_options

evictions: Registry[BlockEviction] = Registry("warmroute.eviction", "eviction policy")
"""The block eviction policies."""


def takes(name: str, option: str) -> bool:
    """Say whether the eviction policy called *name* has such an *option*.

    Raises:
        PolicyError: No such policy.
    """
    return any(one.name == option for one in read_options(evictions.get(name)))


def create(
    name: str, capacity: int, clock: Callable[[], float], /, **options: object
) -> BlockEviction:
    """Build the eviction policy called *name*.

    Args:
        name: As its entry point says.
        capacity: Blocks that the cache can hold.
        clock: Monotonic seconds.
        options: What its constructor takes besides, by keyword.

    Raises:
        PolicyError: No such policy, no such option, or a value it does not take.
    """
    plugin = evictions.get(name)
    known = {one.name: one for one in read_options(plugin) if one.name != "capacity"}
    for key, value in options.items():
        if key not in known:
            fault = explain_unknown("option", key, known)
            raise PolicyError(f"eviction {name}: {fault}")
        if problem := known[key].check(value):
            raise PolicyError(f"eviction {name}: {key}: {problem}")
    given: dict[str, object] = {"capacity": capacity, "clock": clock, **options}
    try:
        return plugin(**given)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise PolicyError(f"eviction {name}: {error}") from error
