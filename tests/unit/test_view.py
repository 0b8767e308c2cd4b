"""The mirror grade of the view: what was sent, confirmed, taken back, corrected."""

from array import array

import pytest

from warmroute.policies.kv.blocks import root_hash
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.seen import SeenBlocks
from warmroute.policies.routing.base import Candidate, Query
from warmroute.proxy.prompt import Piece, Prompt
from warmroute.proxy.view import View
from warmroute.proxy.view.lookup import MAX_BLOCKS, Lookup
from warmroute.proxy.view.ticket import Ticket

ROOT = root_hash("m")
TEXT_ROOT = root_hash("m", grade="estimated")


def exact(*prompts: list[int]) -> Prompt:
    pieces = tuple(
        Piece(len(tokens), ROOT, tokens=array("I", tokens)) for tokens in prompts
    )
    total = sum(piece.num_tokens for piece in pieces)
    return Prompt("completions", "m", "exact", pieces, total)


def estimated(text: bytes, bytes_per_token: float = 4.0) -> Prompt:
    num_tokens = round(len(text) / bytes_per_token)
    piece = Piece(num_tokens, TEXT_ROOT, text=text)
    return Prompt("chat", "m", "estimated", (piece,), num_tokens)


def tokens(seed: int, length: int) -> list[int]:
    return list(range(seed * 100_000, seed * 100_000 + length))


class Proxy:
    """A fake of what surrounds the view: candidates and a clock."""

    def __init__(self, *names: str, max_bytes: int = 2**24, **options: int) -> None:
        self.index = PrefixIndex(max_bytes)
        self.view = View(self.index)
        self.candidates = [Candidate(name) for name in names]
        self.now = 100.0
        self.bytes_per_token = 4.0
        for name in names:
            self.view.add_backend(name, **options)

    def look(self, prompt: Prompt) -> Lookup:
        self.now += 1.0
        return self.view.match(prompt, self.candidates, self.bytes_per_token, self.now)

    def matched(self, prompt: Prompt) -> list[int]:
        self.look(prompt)
        return [candidate.matched_tokens for candidate in self.candidates]

    def send(self, prompt: Prompt, name: str = "a") -> Ticket:
        return self.view.dispatched(self.look(prompt), name, self.now)

    def serve(self, prompt: Prompt, cached: int | None, name: str = "a") -> Ticket:
        """Send and confirm; *cached* is the engine's report, where it makes one."""
        ticket = self.send(prompt, name)
        self.view.confirmed(ticket, self.now)
        if cached is not None:
            self.view.realised(ticket, cached, self.now)
        self.index.check_integrity()
        return ticket


class TestMatch:
    def test_at_most_all_but_one_token_in_whole_blocks(self):
        """The engine computes at least one token, so the last full block is out."""
        proxy = Proxy("a", "b", block_size=16)
        proxy.serve(exact(tokens(1, 64)), None)

        assert proxy.matched(exact(tokens(1, 64))) == [48, 0]
        assert proxy.matched(exact(tokens(1, 65))) == [64, 0]
        assert proxy.matched(exact(tokens(1, 63))) == [48, 0]
        assert proxy.matched(exact(tokens(1, 16))) == [0, 0]
        assert proxy.matched(exact(tokens(1, 1))) == [0, 0]

    def test_pages_of_one_token_are_token_exact(self):
        """With block size 1 the matched prefix is exact."""
        proxy = Proxy("a", block_size=1)
        proxy.serve(exact(tokens(1, 50)), None)

        assert proxy.matched(exact([*tokens(1, 33), 7])) == [33]
        assert proxy.matched(exact(tokens(1, 50))) == [49]

    def test_mixed_block_sizes_each_count_in_their_own(self):
        """One prompt is hashed for every block size among the candidates."""
        proxy = Proxy("a", "b", block_size=16)
        proxy.view.configure("b", block_size=32)
        prompt = exact(tokens(1, 100))
        proxy.serve(prompt, None, "a")
        proxy.serve(prompt, None, "b")

        assert proxy.matched(prompt) == [96, 96]
        assert proxy.matched(exact(tokens(1, 90))) == [80, 64]

    def test_prompts_of_one_request_add_up(self):
        """A body with several prompts counts all of their cached prefixes."""
        proxy = Proxy("a", "b")
        proxy.serve(exact(tokens(1, 64), tokens(2, 32)), None)

        assert proxy.matched(exact(tokens(1, 65), tokens(2, 33))) == [96, 0]
        assert proxy.matched(exact(tokens(2, 33))) == [32, 0]

    def test_text_is_counted_in_whole_engine_blocks(self):
        """Matched bytes become tokens by the model's bytes per token."""
        proxy = Proxy("a", block_size=16)
        text = bytes(range(256)) * 4
        proxy.serve(estimated(text), None)

        assert proxy.matched(estimated(text + b"x" * 100)) == [256]
        proxy.bytes_per_token = 5.0
        assert proxy.matched(estimated(text + b"x" * 100)) == [192]
        assert proxy.matched(estimated(text[:768] + b"y" * 600)) == [144]

    def test_prompt_of_grade_none_matches_nothing(self):
        """Without a readable prompt all candidates are equal."""
        proxy = Proxy("a", "b")
        proxy.candidates[1].matched_tokens = 99

        assert proxy.matched(Prompt()) == [0, 0]
        ticket = proxy.serve(Prompt(), 0)
        proxy.view.failed(ticket)

    def test_backend_without_a_view_has_nothing(self):
        """A candidate that the view does not know, or does not watch, is cold."""
        proxy = Proxy("a")
        proxy.candidates.append(Candidate("new"))
        proxy.candidates.append(Candidate("off"))
        proxy.view.add_backend("off", source="none")
        prompt = exact(tokens(1, 64))
        for name in ("a", "new", "off"):
            proxy.serve(prompt, None, name)

        assert proxy.matched(prompt) == [48, 0, 0]
        assert proxy.view.facts("off")["source"] == "none"

    def test_list_of_candidates_that_grows_is_looked_at_again(self):
        """A list is known by its identity, and still may gain a backend."""
        proxy = Proxy("a")
        prompt = exact(tokens(1, 65))
        proxy.view.add_backend("b")
        assert proxy.matched(prompt) == [0]
        proxy.candidates.append(Candidate("b"))
        proxy.serve(prompt, None, "b")

        assert proxy.matched(prompt) == [0, 64]

    def test_each_list_of_candidates_has_its_own_order(self):
        """Two models share backends in different orders; many lists come and go."""
        proxy = Proxy("a", "b", "c")
        prompt = exact(tokens(1, 65))
        proxy.serve(prompt, None, "b")
        lists = [[Candidate(name) for name in "cb"] for _ in range(300)]
        for _ in range(2):
            for candidates in lists:
                proxy.view.match(prompt, candidates, 4.0, proxy.now)
                assert [one.matched_tokens for one in candidates] == [0, 64]
            assert proxy.matched(prompt) == [0, 64, 0]

    def test_matches_in_parts_of_runs_and_behind_them(self):
        """Backends that stop in one run, at its end, and further down."""
        proxy = Proxy("a", "b", "c", "d", capacity_tokens=160)
        whole, other = tokens(1, 160), tokens(2, 48)
        for name in "abc":
            proxy.serve(exact(whole), None, name)
        proxy.serve(exact(other), None, "a")
        proxy.serve(exact(whole[:64] + other), None, "b")

        assert proxy.matched(exact([*whole, 1])) == [112, 112, 160, 0]
        assert proxy.matched(exact(whole[:97])) == [96, 96, 96, 0]
        assert proxy.matched(exact(whole[:96] + tokens(3, 65))) == [96, 96, 96, 0]

    def test_tiers_add_up(self):
        """Host and disk count only what lies beyond the tier above."""
        proxy = Proxy("a", "b")
        host = proxy.index.add_holder("a", "host")
        disk = proxy.index.add_holder("a", "disk")
        prompt = exact(tokens(1, 160))
        hashes = proxy.look(prompt).chains[16][0].hashes
        proxy.index.store(
            proxy.index.add_holder("a"), None, hashes[:3], hashes[:3], 16, 1.0
        )
        proxy.index.store(host, None, hashes[:5], hashes[:5], 16, 2.0)
        proxy.index.store(disk, hashes[4], hashes[5:], hashes[5:], 16, 3.0)
        lookup = proxy.look(prompt)

        assert (lookup.gpu[0], lookup.host[0], lookup.disk[0]) == (48, 32, 64)
        assert lookup.matched == [144, 0]

    def test_blocks_beyond_the_bound_count_as_not_cached(self):
        """Of an endless prompt only so many blocks are hashed."""
        proxy = Proxy("a", block_size=1)
        prompt = exact(tokens(1, MAX_BLOCKS + 500))
        proxy.serve(prompt, None)

        assert proxy.matched(prompt) == [MAX_BLOCKS]
        text = estimated(bytes(256 * (MAX_BLOCKS + 5)))
        assert len(proxy.look(text).chains[1][0].hashes) == MAX_BLOCKS


class TestOutcome:
    def test_dispatch_after_others_have_changed_the_index(self):
        """A lookup keeps its place in the index only while nothing changes."""
        proxy = Proxy("a", "b")
        long, short = exact(tokens(1, 161)), exact(tokens(1, 81))
        lookups = [proxy.look(one) for one in (long, short, long)]
        for lookup, name in zip(lookups, "aab", strict=True):
            proxy.now += 1.0
            proxy.view.confirmed(proxy.view.dispatched(lookup, name, proxy.now), 0.0)
            proxy.index.check_integrity()

        assert proxy.matched(long) == [160, 160]
        assert proxy.view.facts("a")["blocks"] == 10

    def test_dispatch_after_a_split(self):
        """A run that was split since the lookup is entered from its start."""
        proxy = Proxy("a", "b")
        long = exact(tokens(1, 161))
        proxy.serve(long, None)
        lookup = proxy.look(long)
        proxy.serve(exact(tokens(1, 81)), None)
        proxy.view.dispatched(lookup, "b", proxy.now)

        assert proxy.matched(long) == [160, 160]

    @pytest.mark.parametrize("change", ["remove", "replace", "block size", "unknown"])
    def test_dispatch_to_a_backend_that_has_changed_enters_nothing(self, change):
        """What was looked up for another backend, or in other blocks, is void."""
        proxy = Proxy("a", "b")
        lookup = proxy.look(exact(tokens(1, 65)))
        if change == "remove":
            proxy.view.remove_backend("a")
        elif change == "replace":
            proxy.view.add_backend("a")
        elif change == "block size":
            proxy.view.configure("a", block_size=32)
        name = "z" if change == "unknown" else "a"
        ticket = proxy.view.dispatched(lookup, name, proxy.now)

        assert proxy.index.num_blocks == 0
        proxy.view.confirmed(ticket, proxy.now)
        proxy.view.realised(ticket, 64, proxy.now)
        proxy.view.failed(ticket)

    def test_confirmation_after_a_split_and_after_eviction(self):
        """A prompt is made newest in what is left of it, however it lies by then."""
        proxy = Proxy("a", capacity_tokens=256)
        slow = proxy.send(exact(tokens(1, 161)))
        proxy.serve(exact(tokens(1, 65)), None)
        proxy.serve(exact(tokens(2, 129)), None)
        assert proxy.matched(exact(tokens(1, 161))) == [128]
        proxy.view.confirmed(slow, proxy.now)
        proxy.serve(exact(tokens(3, 97)), None)

        assert proxy.matched(exact(tokens(1, 161))) == [128]
        assert proxy.matched(exact(tokens(2, 129))) == [32]

    def test_burst_finds_the_first_request_before_its_answer(self):
        """A prompt counts from dispatch on."""
        proxy = Proxy("a", "b")
        proxy.send(exact(tokens(1, 65)))

        assert proxy.matched(exact(tokens(1, 65))) == [64, 0]

    def test_failed_dispatch_leaves_nothing(self):
        """When nothing came of a request, its blocks are not there."""
        proxy = Proxy("a")
        proxy.serve(exact(tokens(1, 33)), None)
        ticket = proxy.send(exact(tokens(1, 129)))
        proxy.view.failed(ticket)
        proxy.view.failed(ticket)

        assert proxy.matched(exact(tokens(1, 129))) == [32]
        proxy.index.check_integrity()

    def test_failure_spares_what_another_request_uses(self):
        """Blocks that somebody used since the dispatch stay."""
        proxy = Proxy("a")
        first = proxy.send(exact(tokens(1, 129)))
        proxy.send(exact(tokens(1, 65)))
        proxy.view.failed(first)

        assert proxy.matched(exact(tokens(1, 129))) == [64]

    def test_error_answer_takes_its_blocks_back(self):
        """An answer that began and failed leaves nothing either."""
        proxy = Proxy("a")
        ticket = proxy.serve(exact(tokens(1, 129), tokens(2, 64)), None)
        proxy.view.failed(ticket)

        assert proxy.matched(exact(tokens(1, 129), tokens(2, 64))) == [0]

    def test_frozen_clock_gives_each_dispatch_its_own_stamp(self):
        """Two requests at one instant are told apart when one fails."""
        proxy = Proxy("a")
        lookups = [proxy.look(exact(tokens(1, 65))) for _ in range(2)]
        tickets = [proxy.view.dispatched(one, "a", 50.0) for one in lookups]
        proxy.view.failed(tickets[0])

        assert proxy.matched(exact(tokens(1, 65))) == [64]
        assert tickets[0].stamp < tickets[1].stamp

    def test_restart_wipes_and_voids_open_tickets(self):
        """Late outcomes of the old engine do not touch the new one's view."""
        proxy = Proxy("a", "b")
        prompt = exact(tokens(1, 65))
        ticket = proxy.send(prompt)
        proxy.view.wipe("a")
        assert proxy.matched(prompt) == [0, 0]
        assert proxy.view.facts("a")["incarnation"] == 1

        proxy.send(prompt)
        proxy.view.failed(ticket)
        proxy.view.confirmed(ticket, proxy.now)
        proxy.view.realised(ticket, 0, proxy.now)
        assert proxy.matched(prompt) == [64, 0]

    def test_removed_backend_leaves_no_trace(self):
        """A new backend of the same name inherits nothing, from tickets neither."""
        proxy = Proxy("a", "b")
        prompt = exact(tokens(1, 65))
        ticket = proxy.send(prompt)
        proxy.view.remove_backend("a")
        assert proxy.matched(prompt) == [0, 0]
        proxy.view.add_backend("c")
        proxy.view.add_backend("a")
        proxy.view.confirmed(ticket, proxy.now)

        assert proxy.matched(prompt) == [0, 0]
        proxy.index.check_integrity()

    def test_backend_added_again_starts_empty(self):
        """A name that comes twice is a new backend."""
        proxy = Proxy("a")
        prompt = exact(tokens(1, 65))
        proxy.serve(prompt, None)
        proxy.view.add_backend("a")

        assert proxy.matched(prompt) == [0]


class TestSeen:
    def test_seen_tokens_are_those_sent_to_anybody(self):
        """What the index has counts without the memory, the rest is remembered."""
        proxy, seen = Proxy("a", "b"), SeenBlocks()

        def send(*prompts: list[int]) -> int:
            lookup = proxy.look(exact(*prompts))
            proxy.view.dispatched(lookup, "a", proxy.now)
            return lookup.seen_tokens(seen)

        assert send(tokens(1, 65)) == 0
        assert send(tokens(1, 97), tokens(2, 32)) == 64
        proxy.view.wipe("a")
        assert send(tokens(1, 129), tokens(2, 64)) == 96 + 32
        assert send() == 0

    def test_memory_that_forgot_is_not_asked_for_what_is_there(self):
        """Blocks in the index were sent, whatever the small memory has lost."""
        proxy, seen = Proxy("a"), SeenBlocks(2)
        prompt = exact(tokens(1, 161))
        for expected in (0, 160):
            lookup = proxy.look(prompt)
            assert lookup.seen_tokens(seen) == expected
            proxy.view.dispatched(lookup, "a", proxy.now)
            seen.add(range(10**6, 10**6 + 2))

    def test_text_counts_in_estimated_tokens(self):
        """A block of text is 256 bytes by the bytes per token."""
        proxy, seen = Proxy("a"), SeenBlocks()
        proxy.look(estimated(bytes(600))).seen_tokens(seen)

        assert proxy.look(estimated(bytes(1200))).seen_tokens(seen) == 128
        assert seen.prefix_seen(proxy.look(estimated(bytes(1200))).chains[16][0].hashes)


class TestCapacity:
    def test_least_recently_used_prompt_goes(self):
        """Beyond the engine's capacity the oldest prompt is gone."""
        proxy = Proxy("a", capacity_tokens=320)
        for seed in (1, 2, 1, 3):
            proxy.serve(exact(tokens(seed, 129)), None)

        assert [proxy.matched(exact(tokens(seed, 129)))[0] for seed in (1, 2, 3)] == [
            128,
            64,
            128,
        ]

    def test_confirmation_makes_a_prompt_newest(self):
        """Engines free a request's blocks at its end, so the last to begin stays."""
        proxy = Proxy("a", capacity_tokens=256)
        slow = proxy.send(exact(tokens(1, 129)))
        proxy.serve(exact(tokens(2, 129)), None)
        proxy.view.confirmed(slow, proxy.now)
        proxy.serve(exact(tokens(3, 129)), None)

        assert proxy.matched(exact(tokens(1, 129))) == [128]
        assert proxy.matched(exact(tokens(2, 129))) == [0]

    def test_capacity_that_becomes_known_applies_at_once(self):
        """What the metrics say bounds the view from then on."""
        proxy = Proxy("a")
        for seed in range(10):
            proxy.serve(exact(tokens(seed, 160)), None)
        assert proxy.view.facts("a")["blocks"] == 100
        proxy.view.configure("a", capacity_tokens=800)

        assert proxy.view.facts("a")["blocks"] == 50

    def test_shortfall_keeps_the_prompt_and_drops_what_is_older_behind(self):
        """The engine has just computed this prompt; its old siblings are gone."""
        proxy = Proxy("a")
        proxy.serve(exact(tokens(1, 128) + tokens(2, 64)), None)
        proxy.serve(exact(tokens(1, 128) + tokens(3, 65)), 64)

        assert proxy.matched(exact(tokens(1, 128) + tokens(3, 65))) == [192]
        assert proxy.matched(exact(tokens(1, 128) + tokens(2, 65))) == [128]

    def test_difference_below_one_block_is_ignored(self):
        """Fifteen tokens of sixteen say nothing."""
        proxy = Proxy("a")
        proxy.serve(exact(tokens(1, 64) + tokens(2, 64)), None)
        proxy.serve(exact(tokens(1, 64) + tokens(3, 65)), 49)

        assert proxy.matched(exact(tokens(1, 64) + tokens(2, 65))) == [128]

    def test_learned_capacity_shrinks_when_misses_repeat(self):
        """An engine that keeps less than it told is found out, slowly."""
        proxy = Proxy("a", capacity_tokens=10_240)
        for _ in range(12):
            for seed in range(60):
                promised = proxy.matched(exact(tokens(seed, 161)))[0]
                proxy.serve(exact(tokens(seed, 161)), 0 if promised else None)

        assert proxy.index.tokens(0) < 9_600

    def test_single_miss_does_not_shrink(self):
        """One surprise is not enough to assume less."""
        proxy = Proxy("a", capacity_tokens=1_600)
        for seed in range(10):
            proxy.serve(exact(tokens(seed, 160)), None)
        proxy.serve(exact(tokens(0, 160)), 0)

        assert proxy.index.tokens(0) == 1_600

    def test_more_than_promised_by_a_full_view_grows(self):
        """The engine had what the view had dropped: assume more."""
        proxy = Proxy("a", capacity_tokens=1_600)
        for seed in range(11):
            proxy.serve(exact(tokens(seed, 160)), None)
        proxy.serve(exact(tokens(0, 161)), 160)
        for seed in range(20, 40):
            proxy.serve(exact(tokens(seed, 160)), None)

        assert proxy.index.tokens(0) == 2_000

    def test_engine_that_never_reports_a_hit_loses_belief(self):
        """Eight broken promises and no hit ever mean that its cache is off."""
        proxy = Proxy("a")
        prompt = exact(tokens(1, 161))
        for _ in range(9):
            proxy.serve(prompt, 0)

        assert proxy.matched(prompt) == [0]
        assert proxy.view.facts("a")["source"] == "none"
        proxy.serve(prompt, 160)
        assert proxy.matched(prompt) == [160]

    def test_burst_that_misses_teaches_nothing(self):
        """What is not computed yet was not evicted."""
        proxy = Proxy("a")
        prompt = exact(tokens(1, 161))
        tickets = [proxy.send(prompt) for _ in range(30)]
        for ticket in tickets:
            proxy.view.confirmed(ticket, proxy.now)
            proxy.view.realised(ticket, 0, proxy.now)

        assert proxy.matched(prompt) == [160]

    def test_estimates_are_allowed_to_be_off(self):
        """A report within the error of the estimate changes nothing."""
        proxy = Proxy("a")
        shared = bytes(range(256)) * 8
        proxy.serve(estimated(shared + b"a" * 2560), None)
        proxy.serve(estimated(shared + b"b" * 2560), 420)
        assert proxy.matched(estimated(shared + b"a" * 2560)) == [1136]

        proxy.serve(estimated(shared + b"c" * 2560), 120)
        assert proxy.matched(estimated(shared + b"a" * 2560)) == [512]


class TestShown:
    def test_tree_shows_the_runs_of_one_backend(self):
        """Each node is a run with tokens, tiers, hits, age, and children."""
        proxy = Proxy("a", "b")
        proxy.serve(exact(tokens(1, 64) + tokens(2, 32)), None)
        proxy.serve(exact(tokens(1, 64) + tokens(3, 16)), None)
        proxy.serve(exact(tokens(4, 64)), None, "b")
        root = proxy.view.tree("a", 2, proxy.now)
        (run,) = root["children"]

        assert (root["hash"], root["tokens"], root["last_used_s"]) == ("", 0, None)
        assert (run["tokens"], run["tiers"], run["hits"]) == (64, ["gpu"], 2)
        assert len(run["hash"]) == 16
        assert 0.0 <= run["last_used_s"] < 2.0
        assert [child["tokens"] for child in run["children"]] == [16, 32]
        assert proxy.view.tree("a", 1)["children"][0]["children"] == []

    def test_wide_tree_is_cut_and_says_so(self):
        """Of a thousand prompts the newest two hundred are shown."""
        proxy = Proxy("a")
        for seed in range(250):
            proxy.serve(exact(tokens(seed, 16)), None)
        root = proxy.view.tree("a", 1)

        assert (len(root["children"]), root["omitted"]) == (200, 50)

    def test_facts_and_stats(self):
        """What the admin API shows of a backend, and of the whole index."""
        proxy = Proxy("a", max_bytes=10_000)
        proxy.serve(exact(tokens(1, 64)), None)

        assert proxy.view.facts("a") == {
            "source": "mirror",
            "blocks": 4,
            "seq": None,
            "incarnation": 0,
            "gaps": 0,
            "replays": 0,
            "lag_s": None,
        }
        stats = proxy.view.stats()
        assert (stats["cap_bytes"], stats["blocks"]) == (10_000, 4)
        assert 0 < stats["bytes"] <= 10_000

    def test_unknown_backend_is_a_key_error(self):
        """Names come from the fleet; a wrong one is a bug in the caller."""
        with pytest.raises(KeyError):
            Proxy("a").view.facts("z")


class TestDescribe:
    """What a policy is told of the start of a prompt."""

    def described(self, proxy: Proxy, prompt: Prompt) -> Query:
        query = Query(prompt.num_tokens, 0.0)
        proxy.look(prompt).describe(query)
        return query

    def test_token_prompts_with_one_start_share_their_first_blocks(self) -> None:
        proxy = Proxy("a", "b", block_size=16)
        first = self.described(proxy, exact(tokens(1, 64)))
        second = self.described(proxy, exact(tokens(1, 32) + tokens(2, 32)))
        assert (len(first.blocks), first.block_tokens) == (4, 16.0)
        assert first.blocks[:2] == second.blocks[:2]
        assert first.blocks[2] != second.blocks[2]

    def test_what_is_learned_of_bytes_a_token_does_not_move_text(self) -> None:
        proxy = Proxy("a")
        before = self.described(proxy, estimated(b"x" * 1000))
        proxy.bytes_per_token = 3.1
        assert self.described(proxy, estimated(b"x" * 1000)) == before
        assert (len(before.blocks), before.block_tokens) == (3, 64.0)

    def test_no_pieces_and_no_views_leave_it_empty(self) -> None:
        empty = Prompt("chat", "m", "estimated", (), 5)
        for proxy, prompt in (
            (Proxy("a"), empty),
            (Proxy(), exact(tokens(1, 64))),
        ):
            assert self.described(proxy, prompt) == Query(prompt.num_tokens, 0.0)
