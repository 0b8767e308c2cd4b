"""Build the fleets that are compared: routed ones, and what no router can beat."""

from collections.abc import Callable
from random import Random
from typing import Final

from warmroute.policies.registry import policies
from warmroute.policies.routing.base import Policy, build, options
from warmroute.proxy.replay.batching_engine import BatchingEngine
from warmroute.proxy.replay.batching_fleet import BatchingFleet
from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.kv_memory import KvMemory
from warmroute.proxy.replay.memory_view import make_view
from warmroute.proxy.replay.play import Fleet, InOrder
from warmroute.proxy.replay.pooled import (
    clairvoyant_cache,
    infinite_cache,
    pooled_cache,
)
from warmroute.proxy.replay.routed import RoutedFleet
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace, TraceRequest
from warmroute.proxy.replay.view_grade import EXACT

FleetMaker = Callable[[int], Fleet]
"""Makes a fleet from a seed."""

# Where a decode slows nothing, a prefill stops nobody and depth costs nothing,
# none of them has a price; told rates have no noise that ties must allow for.
_PLAIN: Final = {
    "stall_weight": 0.0,
    "decode_weight": 0.0,
    "attention_tokens": 0.0,
    "tie_tolerance": 0.0,
}
_CENTRAL_POLICY: Final = "expected_ttft"


def build_policy(name: str, seed: int, is_batching: bool = False) -> Policy:
    """Build the policy called *name*, with its random draws from *seed*.

    Raises:
        PolicyError: There is no such policy.
    """
    values = {}
    if not is_batching:
        known = {option.name for option in options(policies.get(name))}
        values = {k: v for k, v in _PLAIN.items() if k in known}
    return build(name, values, Random(f"policy {seed}"))


def routed_fleet(name: str, setting: Setting, trace: Trace) -> FleetMaker:
    """Return what makes a fleet behind the policy *name*."""
    if setting.batching is None:
        return lambda seed: _plain(name, setting, trace, seed)
    constants = setting.batching

    def make(seed: int) -> Fleet:
        tree, size = trace.tree, trace.block_size
        assert tree is not None
        memories = [
            KvMemory(tree, size, setting.capacity_tokens)
            for _ in range(setting.backends)
        ]
        return _batching(name, setting, trace, constants, memories, seed)

    return make


def oracle_fleets(setting: Setting, trace: Trace) -> dict[str, FleetMaker]:
    """Return what makes the fleets that no router can have."""
    if setting.batching is None:
        size = trace.block_size
        makers: dict[str, FleetMaker] = {
            "oracle_pooled": lambda seed: InOrder(pooled_cache(setting, size)),
            "oracle_belady": lambda seed: InOrder(
                clairvoyant_cache(setting, size, _future(trace, setting, seed))
            ),
            "oracle_infinite": lambda seed: InOrder(infinite_cache(setting, size)),
        }
        if trace.sessions:  # whose turns nobody knows beforehand
            del makers["oracle_belady"]
        return makers
    total = setting.backends * setting.capacity_tokens
    return {
        "oracle_pooled": _one_memory(setting, trace, total),
        "oracle_infinite": _one_memory(setting, trace, None),
    }


def _plain(name: str, setting: Setting, trace: Trace, seed: int) -> Fleet:
    policy = build_policy(name, seed)
    server = RoutedFleet(policy, setting, trace.block_size, seed)
    if setting.queue is None:
        return InOrder(server)
    from warmroute.proxy.replay.held_queues import HeldQueues

    return HeldQueues(server, setting.queue)


def _future(trace: Trace, setting: Setting, seed: int) -> list[TraceRequest]:
    rng = Random(f"arrivals {seed}")
    arrivals = trace.arrivals(setting.speed, setting.jitter_s, rng)
    return [request for _, request in arrivals]


def _one_memory(setting: Setting, trace: Trace, capacity: int | None) -> FleetMaker:
    """Return what makes engines that share one memory, by the least expected cost."""
    constants = setting.batching
    assert constants is not None

    def make(seed: int) -> Fleet:
        assert trace.tree is not None
        memory = KvMemory(trace.tree, trace.block_size, capacity)
        memories = [memory] * setting.backends
        return _batching(_CENTRAL_POLICY, setting, trace, constants, memories, seed)

    return make


def _batching(
    name: str,
    setting: Setting,
    trace: Trace,
    constants: EngineConstants,
    memories: list[KvMemory],
    seed: int,
) -> Fleet:
    assert trace.tree is not None
    engines = [
        BatchingEngine(
            constants.slowed(setting.slow.get(index, 1.0)),
            memory,
            trace.tree,
            trace.block_size,
        )
        for index, memory in enumerate(memories)
    ]
    is_shared = len(set(map(id, memories))) < len(memories)
    grade = EXACT if is_shared else setting.view
    view = make_view(grade, memories, trace, Random(f"events {seed}"))
    policy = build_policy(name, seed, is_batching=True)
    fleet = BatchingFleet(policy, setting, trace, engines, view)
    if setting.queue is not None and not is_shared:
        from warmroute.proxy.replay.holding import Holding

        fleet.hold(Holding(setting.queue, fleet, fleet.candidates))
    return fleet
