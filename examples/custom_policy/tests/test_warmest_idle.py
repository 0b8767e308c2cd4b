"""The example's policy is found by its name and chooses as it says."""

import pytest

from warmroute.policies.errors import PolicyError
from warmroute.policies.routing.base import Candidate, Query, build

QUERY = Query(1000, 0.0)


def test_the_warmest_of_those_that_are_not_busy_wins() -> None:
    """The longest match wins among those with few requests."""
    fleet = [
        Candidate("a", matched_tokens=800, requests=4),
        Candidate("b", matched_tokens=100, requests=3),
        Candidate("c", matched_tokens=400, requests=3),
    ]
    assert build("warmest_idle").choose(QUERY, fleet).index == 2
    assert build("warmest_idle", {"few": 5}).choose(QUERY, fleet).index == 0


def test_when_all_are_busy_the_fewest_requests_win() -> None:
    """Without an idle backend, matches do not count."""
    fleet = [Candidate("a", matched_tokens=800, requests=9), Candidate("b", requests=8)]
    assert build("warmest_idle").choose(QUERY, fleet).index == 1


def test_options_are_checked_against_their_limits() -> None:
    """What YAML says is checked before the policy is built."""
    with pytest.raises(PolicyError, match=r"few: 0 is out of range"):
        build("warmest_idle", {"few": 0})
