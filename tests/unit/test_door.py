"""Which request targets some server could read as the engine's own KV door."""

import pytest

from warmroute.adapters.door import leads_to_door

DOORS = [
    b"/warmroute/kv/flush",
    b"/warmroute/",
    b"/warmroute",
    b"/warmroute/kv?x=/v1/models",
    b"/warmroute%2Fkv/flush",
    b"/warmroute%2fkv",
    b"/%77armroute/kv",
    b"/%2577armroute/kv",
    b"/%252577armroute/kv",
    b"//warmroute/kv",
    b"///warmroute//kv",
    b"//host/warmroute/kv",
    b"/./warmroute/kv",
    b"/x/../warmroute/kv",
    b"/x/%2e%2e/warmroute/kv",
    b"/x/..%2Fwarmroute%2Fkv",
    b"/../engine/warmroute/kv",
    b"/x%3F/../warmroute/kv",
    b"/x/..;/warmroute/kv",
    b"/warmroute;a=b/kv",
    b"\\warmroute\\kv",
    b"/\\warmroute/kv",
    b"/x\\..\\warmroute/kv",
    b"/WarmRoute/KV/flush",
]

OTHERS = [
    b"/",
    b"*",
    b"/v1/chat/completions",
    b"/v1/models/warmroute",
    b"/v1/models/warmroute%2Fkv",
    b"/v1/models/..x",
    b"/v1/../v1/models",
    b"/warmroutes/kv",
    b"/x-warmroute/kv",
    b"/v1/files/%25",
    b"/v1/files/%zz%",
    b"/v1/x?path=/../warmroute/kv",
    b"/x#/../warmroute/kv",
    b"//v1/models",
]


@pytest.mark.parametrize("target", DOORS)
def test_every_spelling_of_the_door_is_seen(target: bytes) -> None:
    """Servers decode, join slashes, resolve dots and fold case."""
    assert leads_to_door(target)


@pytest.mark.parametrize("target", OTHERS)
def test_other_paths_are_not_mistaken_for_it(target: bytes) -> None:
    """A model may be called warmroute."""
    assert not leads_to_door(target)


def test_a_long_target_costs_no_more_than_its_length() -> None:
    """The number of decodings is bounded, however often a path was encoded."""
    assert not leads_to_door(b"/%" + b"25" * 30_000 + b"77armroute/kv")
