"""Options of policies come from their constructors, checked and documented."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from unit.policy_rig import BUILT_IN

from warmroute.policies.errors import PolicyError
from warmroute.policies.registry import policies
from warmroute.policies.routing.base import (
    Candidate,
    Choice,
    Limits,
    Option,
    Policy,
    Query,
    build,
    options,
)
from warmroute.policies.routing.expected_ttft import ExpectedTtft


class TestBuiltIns:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_each_option_has_a_default_within_its_limits_and_a_help(
        self, name: str
    ) -> None:
        for option in options(policies.get(name)):
            assert option.check(option.default) is None
            assert option.help

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_it_is_documented_with_its_options(self, name: str) -> None:
        text = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
        assert f"### `{name}`" in text
        for option in options(policies.get(name)):
            assert f"| `{option.name}` | `{option.default}` |" in text


def test_the_policy_in_the_documentation_works_as_printed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
    names: dict[str, type[Policy]] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    candidates = [Candidate(name) for name in "abc"]
    candidates[0].kv_usage, candidates[2].kv_usage = 0.9, 0.1
    assert names["Emptiest"]().choose(Query(1, 0.0), candidates).index == 2
    assert options(names["Emptiest"]) == [
        Option("unknown", float, 0.5, Limits(0, 1), "usage if not told")
    ]


class FakePolicy:
    """A third party's policy, as its constructor may look."""

    name = "fake"

    def __init__(
        self,
        *,
        label: str = "x",
        flag: bool = False,
        size: int | None = None,
        rng: Random | None = None,
    ) -> None:
        if label == "bad":
            raise ValueError("label 'bad' is taken")
        self.given = (label, flag, size)

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        return Choice(0, "load")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policies._loaded, "fake", FakePolicy)


class TestBuild:
    def test_options_reach_the_policy(self) -> None:
        policy = build("expected_ttft", {"stall_weight": 0, "alpha_cap": 5.5})
        assert isinstance(policy, ExpectedTtft)
        assert (policy.stall_weight, policy.alpha_cap) == (0, 5.5)
        assert policy.decode_weight == 0.1

    @pytest.mark.parametrize(
        ("name", "values", "message"),
        [
            (
                "expected_tft",
                {},
                r"unknown policy 'expected_tft' \(known: .*random.*\); "
                "did you mean 'expected_ttft'",
            ),
            (
                "expected_ttft",
                {"foo": 1},
                r"policy expected_ttft: unknown option 'foo' \(known: alpha_cap, "
                r"attention_tokens, decode_weight, stall_weight, tie_tolerance\)$",
            ),
            (
                "session",
                {"bond": 2},
                r"unknown option 'bond' \(known: bound\); did you mean 'bound'$",
            ),
            ("random", {"seed": 1}, r"unknown option 'seed' \(known: none\)$"),
            ("session", {"rng": None}, r"unknown option 'rng' \(known: bound\)$"),
            (
                "session",
                {"bound": 0.5},
                r"policy session: bound: 0.5 is out of range \(allowed: 1 to 1000\)$",
            ),
            ("session", {"bound": "2"}, r"bound: '2' is not of type float$"),
            ("session", {"bound": True}, r"bound: True is not of type float$"),
            ("session", {"bound": None}, r"bound: None is not of type float$"),
            ("session", {"bound": float("nan")}, r"nan is not a finite number$"),
        ],
    )
    def test_a_wrong_configuration_says_what_is_wrong_and_allowed(
        self, name: str, values: dict[str, object], message: str
    ) -> None:
        with pytest.raises(PolicyError, match=message):
            build(name, values)

    @pytest.mark.usefixtures("fake")
    def test_options_of_third_parties_are_read_from_their_constructor(self) -> None:
        assert options(FakePolicy) == [
            Option("label", str, "x"),
            Option("flag", bool, False),
            Option("size", int, None),
        ]
        policy = build("fake", {"flag": True, "size": None})
        assert isinstance(policy, FakePolicy)
        assert policy.given == ("x", True, None)

    @pytest.mark.usefixtures("fake")
    @pytest.mark.parametrize(
        "values", [{"flag": 1}, {"size": 1.5}, {"size": True}, {"label": "bad"}]
    )
    def test_values_that_a_third_party_refuses_are_policy_errors(
        self, values: dict[str, object]
    ) -> None:
        with pytest.raises(PolicyError, match=r"^policy fake: "):
            build("fake", values)

    def test_limits_include_both_ends(self) -> None:
        option = Option("x", float, 0.0, Limits(0, 1))
        assert option.check(0) is option.check(1.0) is None
        assert option.check(1.01) == "1.01 is out of range (allowed: 0 to 1)"
