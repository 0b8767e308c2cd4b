"""Plugins are found by name, and every fault of theirs says what to do."""

from pathlib import Path

import pytest

from warmroute.policies.errors import AdapterError, PolicyError
from warmroute.policies.registry import Registry, policies


def install(site: Path, distribution: str, *entries: str) -> None:
    """Lay out what pip leaves behind of a distribution with entry points."""
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text("\n".join(("[fake.group]", *entries)) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def fakes() -> Registry[dict[str, int]]:
    return Registry("fake.group", "gadget")


class TestRegistry:
    def test_built_in_policies_come_through_entry_points(self) -> None:
        assert {
            "expected_ttft",
            "least_requests",
            "power_of_two",
            "random",
            "round_robin",
            "session",
        } <= set(policies.names())

    def test_a_third_party_plugin_is_found_by_its_name(self, site: Path) -> None:
        install(site, "alpha", "one = collections:OrderedDict")
        assert fakes().get("one").__name__ == "OrderedDict"

    def test_a_plugin_is_imported_only_when_asked_for(self, site: Path) -> None:
        install(site, "alpha", "bad = no_such_module:X", "good = collections:Counter")
        registry = fakes()
        assert registry.names() == ["bad", "good"]
        assert registry.get("good").__name__ == "Counter"
        assert repr(registry) == "<Registry fake.group: 2 found, 1 loaded>"

    def test_a_plugin_is_loaded_once(self, site: Path) -> None:
        install(site, "alpha", "one = collections:Counter")
        registry = fakes()
        first = registry.get("one")
        (site / "alpha-1.0.dist-info" / "entry_points.txt").unlink()
        assert registry.get("one") is first

    def test_an_unknown_name_lists_the_known_and_suggests_the_near(
        self, site: Path
    ) -> None:
        install(site, "alpha", "wrench = a:B", "hammer = a:C")
        with pytest.raises(PolicyError) as caught:
            fakes().get("wranch")
        assert str(caught.value) == (
            "unknown gadget 'wranch' (known: hammer, wrench); did you mean 'wrench'"
        )

    def test_an_unknown_name_of_an_empty_group_says_none(self) -> None:
        with pytest.raises(PolicyError, match=r"'x' \(known: none\)$"):
            Registry("no.such.group", "gadget").get("x")

    def test_one_name_of_two_distributions_is_an_error_that_names_both(
        self, site: Path
    ) -> None:
        install(site, "alpha", "one = a:B")
        install(site, "beta", "one = c:D")
        with pytest.raises(PolicyError) as caught:
            fakes().get("one")
        message = str(caught.value)
        assert "two fake.group plugins are named 'one'" in message
        assert "a:B of alpha" in message
        assert "c:D of beta" in message

    def test_two_distributions_with_the_same_target_are_still_two(
        self, site: Path
    ) -> None:
        install(site, "alpha", "one = a:B")
        install(site, "beta", "one = a:B")
        with pytest.raises(PolicyError, match="alpha"):
            fakes().names()

    def test_a_plugin_that_does_not_import_is_an_error_with_its_cause(
        self, site: Path
    ) -> None:
        install(site, "alpha", "one = no_such_module:X")
        with pytest.raises(PolicyError) as caught:
            fakes().get("one")
        assert str(caught.value) == (
            "gadget 'one': cannot import no_such_module:X of alpha: "
            "ModuleNotFoundError: No module named 'no_such_module'"
        )
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)

    def test_a_group_may_raise_an_error_of_its_own(self) -> None:
        with pytest.raises(AdapterError):
            Registry("no.such.group", "adapter", AdapterError).get("x")
