"""The view of a backend whose engine announces its blocks itself."""

from array import array
from functools import partial
from typing import Any

from warmroute.adapters.kv_events.wire import Batch, Removed, Stored
from warmroute.policies.kv.blocks import root_hash
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.trunks import Survey
from warmroute.policies.routing.base import Candidate
from warmroute.proxy.prompt import Piece, Prompt
from warmroute.proxy.view import View
from warmroute.proxy.view.ticket import Ticket
from warmroute.proxy.view.track import Track
from warmroute.proxy.view.trust import Trust

SIZE = 16
ROOT = root_hash("m")
LONG_AGO_S = 10.0


def prompt(num_tokens: int, seed: int = 0) -> Prompt:
    ids = array("I", range(seed * 1000, seed * 1000 + num_tokens))
    piece = Piece(num_tokens, ROOT, ids)
    return Prompt("completions", "m", "exact", (piece,), num_tokens)


class House:
    """A view of one backend, with an engine that announces what a test says."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.view = View(self.index)
        self.view.add_backend("a", SIZE)
        tiers = self.view.announce("a", lambda: {"seq": 7})
        self.track = Track(
            self.index,
            tiers,
            lambda *_: ROOT,
            lambda size: self.view.heard("a", size),
            lambda: self.view.announced_gone("a"),
        )
        self.view.verify_by("a", self.track.was_removed)
        self.verdicts: list[tuple[str, str]] = []
        self.view.on_distrust = lambda *verdict: self.verdicts.append(verdict)
        self.candidates = [Candidate("a")]
        self.now = 100.0

    def announce(self, num_blocks: int, seed: int = 0) -> None:
        ids = list(range(seed * 1000, seed * 1000 + num_blocks * SIZE))
        keys = [seed * 1000 + at for at in range(num_blocks)]
        event = Stored(list(keys), None, ids, SIZE)
        self.track.apply(Batch(0.0, [event], 0), self.view.stamp())

    def remove(self, *keys: int) -> None:
        self.track.apply(Batch(0.0, [Removed(list(keys))], 0), self.view.stamp())

    def matched(self, asked: Prompt, later_s: float = 0.001) -> int:
        self.now += later_s
        self.view.match(asked, self.candidates, 4.0, self.now)
        return self.candidates[0].matched_tokens

    def send(self, asked: Prompt) -> Ticket:
        self.now += 0.001
        lookup = self.view.match(asked, self.candidates, 4.0, self.now)
        ticket = self.view.dispatched(lookup, "a", self.now)
        self.view.confirmed(ticket, self.now)
        return ticket

    def serve(self, asked: Prompt, cached: int) -> Ticket:
        ticket = self.send(asked)
        self.view.realised(ticket, cached, self.now)
        self.view.released(ticket, self.now)
        self.index.check_integrity()
        return ticket


class Note:
    """What a record keeps of a request."""

    difference: str | None = None


class TestAnnounced:
    def test_only_what_was_announced_counts(self) -> None:
        house = House()
        house.announce(3)
        assert house.matched(prompt(100)) == 48
        house.serve(prompt(100, seed=1), 0)
        assert house.matched(prompt(100, seed=1), LONG_AGO_S) == 0

    def test_what_a_request_in_flight_computes_is_promised(self) -> None:
        """A burst of equal prompts stays together before any event has come."""
        house = House()
        ticket = house.send(prompt(100))
        assert house.matched(prompt(100)) == 96
        house.view.released(ticket, house.now)
        assert house.matched(prompt(100), 0.05) == 96
        assert house.matched(prompt(100), 0.06) == 0

    def test_a_failed_request_promises_nothing(self) -> None:
        house = House()
        house.view.failed(house.send(prompt(100)))
        assert house.matched(prompt(100)) == 0

    def test_a_promise_outlives_another_request_of_its_prefix(self) -> None:
        house = House()
        first = house.send(prompt(100))
        second = house.send(prompt(200))
        house.view.released(first, house.now)
        assert house.matched(prompt(200), 0.2) == 192
        house.view.released(second, house.now)
        assert house.matched(prompt(200), 0.2) == 0

    def test_the_facts_tell_of_the_events(self) -> None:
        house = House()
        house.announce(3)
        facts = house.view.facts("a")
        assert (facts["source"], facts["blocks"], facts["seq"]) == ("events", 3, 7)

    def test_mirrored_again_it_believes_what_was_sent(self) -> None:
        house = House()
        house.announce(3)
        house.view.mirror_again("a")
        assert house.matched(prompt(100)) == 0
        house.serve(prompt(100), 0)
        assert house.matched(prompt(100), LONG_AGO_S) == 96
        assert house.view.facts("a")["source"] == "mirror"


class TestShown:
    def test_blocks_are_as_old_as_their_event_and_no_prompt_has_passed_them(
        self,
    ) -> None:
        now = 5000.0
        index = PrefixIndex()
        view = View(index, lambda: now)
        view.add_backend("a", SIZE)
        tiers = view.announce("a", dict)
        root, size = lambda *_: ROOT, partial(view.heard, "a")
        track = Track(index, tiers, root, size, lambda: None)
        event = Stored([1], None, list(range(16)), SIZE)
        track.apply(Batch(0.0, [event], 0), view.stamp())
        now += 7
        event = Stored([2], 1, list(range(16, 32)), SIZE)
        track.apply(Batch(0.0, [event], 0), view.stamp())
        now += 1
        (run,) = view.tree("a", 1, now)["children"]  # type: ignore[attr-defined]
        assert (run["last_used_s"], run["hits"], run["tokens"]) == (1.0, 0, 32)
        lookup = view.match(prompt(17), [Candidate("a")], 4.0, now)
        view.dispatched(lookup, "a", now)
        (run,) = view.tree("a", 1, now)["children"]  # type: ignore[attr-defined]
        assert (run["last_used_s"], run["hits"], run["tokens"]) == (0.0, 1, 16)
        assert run["children"] == []

    def test_what_is_promised_is_not_shown_as_held(self) -> None:
        house = House()
        house.announce(2)
        ticket = house.send(prompt(100))
        house.send(prompt(100, seed=1))
        (run,) = house.view.tree("a", 3, house.now)["children"]  # type: ignore[attr-defined]
        assert (run["tiers"], run["tokens"], run["children"]) == (["gpu"], 32, [])
        house.view.released(ticket, house.now)
        shown = finished(house.view.survey(["a"], 10, house.now + LONG_AGO_S))
        assert [one["tokens"] for one in shown["root"]["children"]] == [96, 32]


def finished(survey: Survey) -> Any:
    try:
        while True:
            next(survey)
    except StopIteration as end:
        return end.value


class TestDifference:
    def test_as_foretold(self) -> None:
        house = House()
        house.announce(3)
        assert house.serve(prompt(100), 48).difference is None

    def test_evicted_under_way(self) -> None:
        house = House()
        house.announce(3)
        ticket = house.send(prompt(100))
        house.remove(2)
        house.view.realised(ticket, 32, house.now)
        assert ticket.difference == "evicted"

    def test_not_announced_by_whoever_computes_it(self) -> None:
        house = House()
        house.send(prompt(100))
        assert house.serve(prompt(100), 0).difference == "not_announced"

    def test_more_than_foretold(self) -> None:
        assert House().serve(prompt(100), 48).difference == "came_later"

    def test_several_prompts_of_one_request(self) -> None:
        """Their sum is reported, so that any block that went explains a lack."""
        house = House()
        house.announce(3)
        pieces = (*prompt(100).pieces, *prompt(20, seed=1).pieces)
        both = Prompt("completions", "m", "exact", pieces, 120)
        ticket = house.send(both)
        house.remove(1)
        house.view.realised(ticket, 16, house.now)
        assert ticket.difference == "evicted"
        assert house.serve(both, 120).difference == "came_later"

    def test_evicted_before_the_answer_and_announced_behind_it(self) -> None:
        """The event travels on another connection, and is waited for."""
        house = House()
        house.announce(3)
        house.announce(3, seed=5)
        record = Note()
        ticket = house.serve(prompt(100), 32)
        ticket.record = record
        assert ticket.difference == "unexplained"
        house.remove(5002)
        assert ticket.difference == "unexplained"
        house.remove(2)
        assert (ticket.difference, record.difference) == ("evicted", "evicted")

    def test_only_what_nothing_explains_in_time_is_held_against_a_view(self) -> None:
        for is_late in (False, True):
            house = House()
            for _ in range(12):
                house.announce(6)
                house.serve(prompt(100), 0)
                if is_late:
                    house.matched(prompt(100), LONG_AGO_S)
                house.remove(*range(6))
            assert bool(house.verdicts) == is_late

    def test_a_lie(self) -> None:
        house = House()
        house.announce(3)
        assert house.serve(prompt(100), 16).difference == "unexplained"


class TestDistrust:
    def test_lies_are_discounted_then_the_view_is_made_anew_then_given_up(self) -> None:
        house = House()
        house.announce(6)
        while len(house.verdicts) < 3:
            house.serve(prompt(100), 0)
        assert [action for _, action in house.verdicts] == [
            "resync",
            "resync",
            "degrade",
        ]
        assert house.matched(prompt(100), LONG_AGO_S) == 0

    def test_an_engine_that_announces_nothing_is_noticed(self) -> None:
        """Its address may be wrong: the view would stay empty for ever."""
        house = House()
        for _ in range(8):
            house.serve(prompt(100), 0)
        assert house.verdicts == [("a", "silent")]

    def test_what_is_explained_counts_for_nothing(self) -> None:
        house = House()
        for _ in range(40):
            house.announce(6)
            ticket = house.send(prompt(100))
            house.remove(*range(6))
            house.view.realised(ticket, 0, house.now)
            house.view.released(ticket, house.now)
        assert house.verdicts == []


class TestTrust:
    def test_resync_comes_twice_before_it_degrades(self) -> None:
        trust = Trust()
        verdicts = [trust.observe(96, 48, SIZE) for _ in range(9)]
        assert [one for one in verdicts if one != "well"] == [
            "resync",
            "resync",
            "degrade",
        ]
        assert trust.discount == 0.5

    def test_one_wrong_promise_in_many_is_noise(self) -> None:
        trust = Trust()
        cached = [96, 96, 96, 96, 0] * 20
        assert {trust.observe(96, one, SIZE) for one in cached} == {"well"}

    def test_a_block_too_few_is_noise(self) -> None:
        trust = Trust()
        assert {trust.observe(96, 90, SIZE) for _ in range(40)} == {"well"}

    def test_kept_promises_restore_belief(self) -> None:
        trust = Trust()
        while trust.observe(96, 0, SIZE) == "well":
            pass
        assert trust.discount == 0.0
        for _ in range(32):
            trust.observe(96, 96, SIZE)
        assert (trust.discount, trust.num_resyncs) == (1.0, 0)
