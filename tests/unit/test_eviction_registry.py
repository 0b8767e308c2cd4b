"""Eviction policies are found by name and built from options that are checked."""

import pytest
from unit.eviction_rig import POLICIES, FakeClock

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.registry import create, evictions


def test_built_in_policies_come_through_entry_points() -> None:
    """Every policy of this package is registered under its own name."""
    for policy in POLICIES:
        assert evictions.get(policy.name) is policy


def test_every_registered_policy_can_be_built() -> None:
    """A capacity and a clock are enough."""
    for name in evictions.names():
        policy = create(name, 16, FakeClock())
        assert policy.name == name
        assert len(policy) == 0


def test_options_are_passed_on() -> None:
    """Options reach the constructor."""
    policy = create("s3fifo", 10, FakeClock(), small_ratio=0.5)
    assert policy._small_blocks == 5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lrru", {}, "unknown eviction policy 'lrru'.*did you mean 'lru'"),
        ("lrfu", {"half_life": 3.0}, "lrfu: unknown option 'half_life'.*'half_life_s'"),
        ("lrfu", {"half_life_s": 0.0}, "lrfu: half_life_s: 0.0 is out of range"),
        ("lrfu", {"half_life_s": "x"}, "lrfu: half_life_s: 'x' is not of type float"),
    ],
)
def test_faults_say_what_to_do(
    name: str, options: dict[str, object], message: str
) -> None:
    """An unknown name, an unknown option and a bad value are told apart."""
    with pytest.raises(PolicyError, match=message):
        create(name, 16, FakeClock(), **options)
