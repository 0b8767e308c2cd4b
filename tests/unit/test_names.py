"""Names of models: aliases, adapters, and the roots of both sides."""

import pytest

from warmroute.adapters.base import ModelCard
from warmroute.policies.kv.blocks import root_hash
from warmroute.proxy.prompt.bodies import Body
from warmroute.proxy.prompt.names import Names, find_base
from warmroute.proxy.prompt.roots import Roots, event_root


def cards(*names: str, **adapters: str) -> dict[str, ModelCard]:
    listed = {name: ModelCard(name, None, None, None, {}) for name in names}
    for name, parent in adapters.items():
        listed[name] = ModelCard(name, parent, None, None, {})
    return listed


def names(*fleet):
    found = Names()
    found.learn(fleet)
    return found


class TestNames:
    def test_the_first_model_without_a_parent_is_the_base_of_all(self):
        known = names(cards("big", "alias", lora="big"))
        assert known.resolve("big") == ("big", None)
        assert known.resolve("alias") == ("big", None)
        assert known.resolve("lora") == ("big", "lora")

    def test_a_name_that_means_two_things_stands_for_itself(self):
        known = names(cards("x", "chat"), cards("y", "chat"), cards("z", "chat"))
        assert known.resolve("chat") == ("chat", None)

    def test_no_name_is_the_only_base(self):
        assert names(cards("m", l="m"), cards("m")).resolve("") == ("m", None)
        assert names(cards("m"), cards("n")).resolve("") == ("", None)

    def test_a_base_with_a_colon_and_a_lora_is_taken_apart(self):
        known = names(cards("m", "a:b"))
        assert known.resolve("m:l") == ("m", "l")
        assert known.resolve("a:b") == ("m", None)
        assert known.resolve("other:l") == ("other:l", None)
        assert known.resolve("m:") == ("m:", None)

    def test_it_tells_whether_anything_changed(self):
        known = Names()
        assert known.learn([cards("m")])
        assert not known.learn([cards("m"), cards("m")])
        assert known.learn([cards("n")])

    def test_engines_without_a_list_have_no_base(self):
        assert find_base({}) == ""
        assert find_base(cards(l="m")) == ""


class TestRoots:
    @pytest.mark.parametrize("salt", [None, "s"])
    @pytest.mark.parametrize(
        ("asked", "lora"), [("m", None), ("alias", None), ("ad", "ad"), ("", None)]
    )
    def test_requests_and_events_have_the_same(self, asked, lora, salt):
        models = cards("m", "alias", ad="m")
        roots = Roots()
        roots.learn([models])
        found = roots.find(asked, "exact", Body(cache_salt=salt))
        assert found == event_root(models, lora, salt)

    def test_what_is_remembered_goes_when_the_names_change(self):
        roots = Roots()
        before = roots.find("alias", "estimated", Body())
        assert before == root_hash("alias", grade="estimated")
        roots.learn([cards("m", "alias")])
        assert roots.known_text("alias") is None
        assert roots.find("alias", "estimated", Body()) == root_hash(
            "m", grade="estimated"
        )

    def test_the_body_s_own_adapter_wins(self):
        roots = Roots()
        roots.learn([cards("m")])
        found = roots.find("m", "exact", Body(lora_path="l"))
        assert found == root_hash("m", lora="l")
