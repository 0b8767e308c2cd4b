"""The parts of the conductor around its decisions: budget, books, what it reads."""

from array import array
from types import SimpleNamespace
from typing import cast

from unit.fake_clock import FakeClock

from warmroute.policies.conducting.item import Shared, Talk, Turn
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.conductor.action import MAX_ACTIONS, Actions
from warmroute.proxy.conductor.allowance import Allowance
from warmroute.proxy.conductor.conductor import Conductor
from warmroute.proxy.conductor.exposition import ConductorExposition
from warmroute.proxy.conductor.holdings import Holdings
from warmroute.proxy.conductor.observing import turn_of
from warmroute.proxy.conductor.tokens import MAX_TOKENS, PrefixTokens
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.prompt.prompt import Piece, Prompt
from warmroute.proxy.view import View
from warmroute.proxy.view.lookup import Lookup


def turn(**changes: object) -> Turn:
    facts: dict[str, object] = {
        "now": 1.0,
        "backend": "a",
        "tail": 0xAB,
        "blocks": 10,
        "block_tokens": 16,
        "seen_blocks": 0,
        "before": None,
        "ends": (),
        "fresh_tokens": 160,
        "cached_tokens": 0,
    }
    return Turn(**{**facts, **changes})  # type: ignore[arg-type]


class TestAllowance:
    def test_a_burst_and_then_the_rate(self) -> None:
        clock = FakeClock()
        allowance = Allowance(60, clock)
        assert [allowance.take() for _ in range(12)].count(True) == 10
        clock.now += 3.0
        assert [allowance.take() for _ in range(5)].count(True) == 3
        assert allowance.num_refused == 4

    def test_a_lower_budget_holds_at_once(self) -> None:
        clock = FakeClock()
        allowance = Allowance(600, clock)
        allowance.configure(6)
        assert [allowance.take() for _ in range(5)].count(True) == 1


class TestHoldings:
    def test_everything_can_be_let_go_and_what_ended_is_forgotten(self) -> None:
        holdings = Holdings()
        holdings.add("a", [1, 2], 10.0)
        holdings.add("a", [2, 3], 20.0)
        holdings.add("b", [9], 5.0)
        holdings.expire(10.0)
        assert holdings.counts() == {"a": 2}
        holdings.add("c", [4], 30.0)
        holdings.forget("c")
        assert holdings.take_all() == {"a": [2, 3]}
        assert holdings.take_all() == {}


class TestActions:
    def test_an_outcome_says_whether_the_hit_came(self) -> None:
        cases = [
            ("retain", turn(cached_tokens=160), "hit: 160 of 160"),
            ("retain", turn(cached_tokens=16), "missed: only 16 of 160"),
            ("retain", turn(backend="b"), "asked for on b instead"),
            ("demote", turn(cached_tokens=32), "asked for after all: 128 tokens"),
        ]
        for kind, later, words in cases:
            actions = Actions(lambda: 7.0)
            item = Talk(turn(), 0)
            action = actions.begin(kind, item, "a", "because")  # type: ignore[arg-type]
            action.judge(item, later)
            action.judge(item, turn(cached_tokens=1))
            assert action.outcome is not None
            assert action.outcome.startswith(words)
            assert set(action.as_object()) == {
                *("time", "kind", "backend", "hash", "tokens", "reason", "outcome")
            }
            assert action.hash == f"{0xAB:016x}"

    def test_what_nobody_asks_for_is_judged_by_time(self) -> None:
        actions = Actions(lambda: 7.0)
        item = Talk(turn(), 0)
        kept = actions.begin("retain", item, "a", "r")
        given_up = actions.begin("demote", item, "a", "r")
        actions.expect(kept, 10.0)
        actions.expect(given_up, 20.0)
        actions.expire(15.0)
        assert kept.outcome == "not asked for in time"
        assert given_up.outcome is None
        actions.expire(20.0)
        assert given_up.outcome == "not asked for since"
        assert actions.counts == {("retain", "unused"): 1, ("demote", "unused"): 1}

    def test_what_is_prolonged_is_judged_once_and_at_its_end(self) -> None:
        actions = Actions(lambda: 7.0)
        kept = actions.begin("retain", Talk(turn(), 0), "a", "r")
        actions.expect(kept, 10.0)
        actions.expect(kept, 20.0)
        actions.expire(15.0)
        assert kept.outcome is None
        kept.judge(Talk(turn(), 0), turn(cached_tokens=160))
        actions.expire(15.5)
        actions.expect(kept, 30.0)
        actions.expire(31.0)
        assert actions.counts == {("retain", "hit"): 1}

    def test_every_action_is_counted_once_however_many_wait(self) -> None:
        actions = Actions(lambda: 7.0)
        for at in range(MAX_ACTIONS + 5):
            action = actions.begin("demote", Talk(turn(tail=at), 0), "a", "r")
            actions.expect(action, 50.0)
        assert actions.counts == {("demote", "unused"): 5}
        actions.end(action, "failed", "failed: a: b instead")
        actions.expire(50.0)
        assert actions.counts == {
            ("demote", "unused"): MAX_ACTIONS + 4,
            ("demote", "failed"): 1,
        }

    def test_the_newest_thousand_are_kept(self) -> None:
        actions = Actions(lambda: 7.0)
        for at in range(MAX_ACTIONS + 5):
            actions.begin("retain", Talk(turn(tail=at), 0), "a", "r")
        assert len(list(actions)) == MAX_ACTIONS
        assert next(iter(actions)).hash == f"{MAX_ACTIONS + 4:016x}"


class TestExposition:
    def test_what_it_did_is_told_with_labels_from_fixed_lists(self) -> None:
        actions = Actions(lambda: 7.0)
        action = actions.begin("replicate", Talk(turn(), 0), "a", "r")
        actions.end(action, "copied", "copied: 160 tokens")
        conductor = SimpleNamespace(
            actions=actions,
            num_copied_tokens=160,
            num_failures=2,
            retained_blocks={"a": 3, "gone": 9},
        )
        sizes = {
            "a": SimpleNamespace(block_size=16),
            "b": SimpleNamespace(block_size=None),
        }
        fleet = SimpleNamespace(backends=sizes)
        shown = ConductorExposition(cast(Conductor, conductor), cast(Fleet, fleet))
        told = [
            (sample.name, *sample.labels.values(), sample.value)
            for metric in shown.collect()
            for sample in metric.samples
        ]
        assert told == [
            ("warmroute_conductor_actions_total", "replicate", "copied", 1),
            ("warmroute_conductor_copied_tokens_total", 160),
            ("warmroute_conductor_failures_total", 2),
            ("warmroute_conductor_retained_tokens", "a", 48),
            ("warmroute_conductor_retained_tokens", "b", 0),
        ]


class TestTokens:
    def test_a_million_are_kept_and_the_oldest_go(self) -> None:
        tokens = PrefixTokens()
        part = array("I", [7]) * (MAX_TOKENS // 4)
        for at in range(5):
            tokens.keep(at, "m", part)
        assert tokens.find(0) is None
        found = tokens.find(4)
        assert found is not None
        assert found[0] == "m"
        tokens.keep(9, "m", array("I", [7]) * (MAX_TOKENS // 4 + 1))
        assert 9 not in tokens


class TestObserving:
    """A real view, to which prompts are sent one after the other."""

    def setup_method(self) -> None:
        self.view = View(PrefixIndex())
        self.view.add_backend("a", 16)
        load = FleetLoad()
        self.candidates = [load.add("a")]
        self.now = 1.0

    def send(self, prompt: Prompt) -> tuple[Decision, Lookup]:
        self.now += 1.0
        lookup = self.view.match(prompt, self.candidates, 4.0, self.now)
        roster = Roster(["a"], ["up"], ["mirror"], [0], [16])
        decision = Decision(
            *("r", 0.0, "/v1/completions", "m", "exact", prompt.num_tokens, "p"),
            *(roster, lookup.matched, 0, "prefix"),
        )
        ticket = self.view.dispatched(lookup, "a", self.now)
        self.view.confirmed(ticket, self.now)
        decision.cached_tokens = lookup.matched[0]
        decision.output_tokens = 5
        return decision, lookup

    def test_a_turn_ends_where_the_next_one_begins(self) -> None:
        first = [*range(1000, 1100)]
        decision, lookup = self.send(exact(first))
        one = turn_of(decision, lookup, 0, 2.0)
        assert one is not None
        assert (one.blocks, one.seen_blocks, one.before) == (6, 0, None)
        assert one.fresh_tokens == 105
        decision, lookup = self.send(exact([*first, *range(200)]))
        two = turn_of(decision, lookup, 96, 3.0)
        assert two is not None
        assert (two.before, two.seen_blocks, two.cached_tokens) == (one.tail, 6, 96)
        assert one.tail in two.ends

    def test_a_shared_prefix_is_the_run_where_prompts_part(self) -> None:
        head = [*range(64)]
        self.send(exact([*head, *range(500, 600)]))
        decision, lookup = self.send(exact([*head, *range(700, 800)]))
        found = turn_of(decision, lookup, 64, 3.0)
        assert found is not None
        shared = Shared(found, found.before or 0)
        assert shared.tokens == 64
        assert shared.handle.end == 4  # type: ignore[attr-defined]

    def test_blocks_are_those_of_the_backend_that_answered(self) -> None:
        """Engines with other sizes of blocks have other hashes."""
        self.view.add_backend("b", 32)
        self.candidates.append(FleetLoad().add("b"))
        decision, lookup = self.send(exact([*range(1000, 1100)]))
        decision.index = 1
        found = turn_of(decision, lookup, 0, 2.0)
        assert found is not None
        assert (found.block_tokens, found.blocks) == (32, 3)
        decision.index = 0
        found = turn_of(decision, lookup, 0, 2.0)
        assert found is not None
        assert (found.block_tokens, found.blocks) == (16, 6)

    def test_what_has_no_token_ids_or_no_full_block_is_passed_over(self) -> None:
        text = Prompt(pieces=(Piece(200, 1, text=b"x" * 1000),), num_tokens=200)
        assert turn_of(*self.send(text), 0, 1.0) is None
        assert turn_of(*self.send(exact([1, 2, 3])), 0, 1.0) is None
        assert turn_of(*self.send(Prompt()), 0, 1.0) is None


def exact(tokens: list[int]) -> Prompt:
    piece = Piece(len(tokens), 1, tokens=array("I", tokens))
    return Prompt(grade="exact", pieces=(piece,), num_tokens=len(tokens))
