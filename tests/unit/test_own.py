"""The paths of the data port that the proxy answers itself."""

import json
from typing import cast

from warmroute.proxy.fleet import Fleet
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.own import OwnPaths


class FakeFleet:
    """Serve one model."""

    is_ready = True
    instance_id = "0123"

    def models(self) -> list[dict[str, object]]:
        return [{"id": "smol/1"}]


def ask(path: bytes) -> tuple[int, dict[str, object]]:
    head = RequestHead(b"GET", path, "1.1", [(b"host", b"a")])
    answer = OwnPaths(cast(Fleet, FakeFleet())).answer(head)
    assert answer is not None
    return answer[0], json.loads(answer[1])


def test_models_are_listed_with_and_without_a_slash_at_the_end() -> None:
    """Nobody asks for the model whose name is empty."""
    listing = {"object": "list", "data": [{"id": "smol/1"}]}
    assert ask(b"/v1/models") == (200, listing)
    assert ask(b"/v1/models/") == (200, listing)


def test_a_model_is_found_by_its_name_and_an_unknown_one_is_named() -> None:
    assert ask(b"/v1/models/smol%2F1") == (200, {"id": "smol/1"})
    status, body = ask(b"/v1/models/other")
    assert status == 404
    assert "'other'" in json.dumps(body)
