"""Answers that report no cached tokens: the engine's counters speak for them."""

from hypothesis import given
from hypothesis import strategies as st
from unit import fleet_rig
from unit.fake_engine import FakeEngine
from unit.fleet_rig import Make, entry

from warmroute.adapters.base import CacheCounters
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.counters import Counters
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.ledger.flow import Flow
from warmroute.proxy.ledger.unreported import Unreported
from warmroute.proxy.view import View

make = fleet_rig.make
engine = fleet_rig.engine

classes = st.tuples(*[st.integers(0, 50)] * 5)


def promise(flow: Flow, hit: int, cold: int) -> None:
    """Count an answer without a report."""
    flow.count_tokens((hit, cold, 0, 0, 0), hit, None)


def test_what_was_promised_in_vain_is_made_up_for_by_later_answers() -> None:
    flow, unreported = Flow("m", "a"), Unreported()
    assert unreported.read(CacheCounters(0, 0), [flow]) is None
    promise(flow, 3000, 1000)
    told = unreported.read(CacheCounters(4000, 1000), [flow])
    assert told is not None
    assert (told.promised, told.realised, flow.owed_tokens) == (3000, 1000, 2000)
    promise(flow, 1500, 500)
    promise(flow, 1500, 500)
    assert flow.owed_tokens == 0
    assert flow.tokens.snapshot() == (4000, 2000, 0, 0, 2000)


def test_hits_that_nobody_promised_are_made_up_for_as_well() -> None:
    flow, unreported = Flow("m", "a"), Unreported()
    unreported.read(CacheCounters(0, 0), [flow])
    promise(flow, 0, 2000)
    unreported.read(CacheCounters(2000, 1500), [flow])
    assert flow.owed_tokens == -1500
    flow.count_tokens((0, 1000, 300, 400, 0), 0, None)
    assert flow.tokens.snapshot() == (1500, 2200, 0, 0, 0)


def test_answers_that_report_are_left_out() -> None:
    """Theirs are taken from the counters; the rest of the hits are the others'."""
    flow, unreported = Flow("m", "a"), Unreported()
    unreported.read(CacheCounters(500, 100), [flow])
    flow.count_tokens((4000, 0, 0, 0, 0), 4000, 4000)
    promise(flow, 2000, 0)
    told = unreported.read(CacheCounters(6500, 4100), [flow])
    assert told is not None
    assert (told.promised, told.realised, flow.owed_tokens) == (2000, 0, 2000)


def test_traffic_of_others_counts_as_like_ours() -> None:
    flow, unreported = Flow("m", "a"), Unreported()
    unreported.read(CacheCounters(0, 0), [flow])
    promise(flow, 2000, 0)
    told = unreported.read(CacheCounters(20_000, 10_000), [flow])
    assert told is not None
    assert told.realised == 1000


def test_a_request_across_a_reading_is_no_error_that_stays() -> None:
    """The engine counts it before we do."""
    flow, unreported = Flow("m", "a"), Unreported()
    unreported.read(CacheCounters(0, 0), [flow])
    promise(flow, 2000, 2000)
    unreported.read(CacheCounters(8000, 2000), [flow])
    assert flow.owed_tokens == 1000
    promise(flow, 0, 4000)
    unreported.read(CacheCounters(8000, 2000), [flow])
    assert flow.owed_tokens + flow.tokens.snapshot().unpredicted == 0


def test_an_engine_that_starts_anew_is_read_anew() -> None:
    flow, unreported = Flow("m", "a"), Unreported()
    unreported.read(CacheCounters(9000, 8000), [flow])
    promise(flow, 2000, 0)
    assert unreported.read(CacheCounters(2000, 0), [flow]) is None
    assert flow.owed_tokens == 0


@given(st.lists(st.tuples(classes, st.integers(-60, 60))))
def test_no_class_ever_shrinks_and_no_token_is_lost(
    answers: list[tuple[tuple[int, int, int, int, int], int]],
) -> None:
    flow, total, owed = Flow("m", "a"), 0, 0
    for one, more in answers:
        flow.owed_tokens += more
        owed += more
        before = flow.tokens.snapshot()
        flow.count_tokens(one, one[0], None)
        after = flow.tokens.snapshot()
        total += sum(one)
        assert all(new >= old for new, old in zip(after, before, strict=True))
        assert after.prompt == total
    moved = sum(one[0] for one, _ in answers) - flow.tokens.snapshot().hit
    assert flow.owed_tokens == owed - moved


VLLM = 'vllm:prefix_cache_queries_total{{engine="0"}} {0}\n'
VLLM += 'vllm:prefix_cache_hits_total{{engine="0"}} {1}\n'


async def test_counters_are_read_of_engines_that_report_nothing(
    make: Make, engine: FakeEngine
) -> None:
    """And their views are believed as far as they were right."""
    rig = make(entry("a", engine))
    await rig.until_up("a")
    ledger, view = Ledger(), View(PrefixIndex())
    view.add_backend("a", 16)
    counters = Counters(rig.fleet, ledger, view)
    engine.bodies["/metrics"] = VLLM.format(0, 0).encode()
    await counters.look()
    num_read = engine.calls["/metrics"]
    roster = Roster(["a"], ["up"], ["mirror"], [0])
    decision = Decision(
        *("r", 1.0, "/v1/completions", "m", "exact", 4001, "p", roster),
        *([4000], 0, "load"),
    )
    ledger.open(decision, 0.0)
    ledger.settle(decision, 200, 1.0, prompt_tokens=4001)
    engine.bodies["/metrics"] = VLLM.format(4001, 1000).encode()
    await counters.look()
    assert engine.calls["/metrics"] > num_read
    [flow] = ledger.flows()
    assert flow.owed_tokens == 3000
    assert view._mirrors["a"].trust.discount == 0.25
    engine.bodies["/metrics"] = b"vllm:prefix_cache_queries_total broken"
    await counters.look()
    assert flow.owed_tokens == 3000
