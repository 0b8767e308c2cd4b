"""Seeds of hash chains, beside what the reader's tests say of them."""

from warmroute.policies.kv.blocks import root_hash
from warmroute.proxy.prompt.bodies import Body
from warmroute.proxy.prompt.roots import MAX_ROOTS, Roots


def test_only_seeds_of_texts_without_separators_are_known() -> None:
    roots = Roots()
    roots.find("a", "estimated", Body(cache_salt="s"))
    roots.find("b", "exact", Body())
    roots.find("n" * 300, "estimated", Body())
    seed = roots.find("c", "estimated", Body())
    assert seed == root_hash("c", grade="estimated") == roots.known_text("c")
    assert [roots.known_text(name) for name in ("a", "b", "n" * 300)] == [None] * 3
    assert repr(roots) == "<Roots [2 remembered]>"


def test_media_separate_the_seed() -> None:
    roots = Roots()
    assert roots.find("m", "estimated", Body(), "digest") == root_hash(
        "m", grade="estimated", extra=["media=digest"]
    )


def test_the_oldest_seed_goes_first() -> None:
    roots = Roots()
    for index in range(MAX_ROOTS + 1):
        roots.find(f"m{index}", "estimated", Body())
    assert roots.known_text("m0") is None
    assert roots.known_text("m1") is not None
    assert repr(roots) == f"<Roots [{MAX_ROOTS} remembered]>"
