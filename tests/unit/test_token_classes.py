"""The classes of tokens, with the real view and an engine that reports honestly."""

from array import array
from math import ceil

from hypothesis import given
from hypothesis import strategies as st
from unit.test_ledger import decide, ledger

from warmroute.policies.kv.blocks import root_hash
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.seen import SeenBlocks
from warmroute.policies.routing.base import Candidate
from warmroute.proxy.ledger.decision import Roster
from warmroute.proxy.ledger.tokens import TokenClasses
from warmroute.proxy.prompt import Piece, Prompt
from warmroute.proxy.view import View


class FakeFleet:
    """One backend behind the real view, whose engine forgets nothing and reports."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.view = View(PrefixIndex(2**24))
        self.view.add_backend("a", block_size)
        self.seen = SeenBlocks(2**14)
        self.candidates = [Candidate("a")]
        self.roster = Roster(["a"], ["up"], ["mirror"], [0], [block_size])
        self.books = ledger()
        self.now = 0.0

    def serve(self, prompt: Prompt, count: int, shared: int) -> TokenClasses:
        """Send a prompt of *count* tokens, *shared* of which came before."""
        self.now += 1.0
        size = self.block_size
        lookup = self.view.match(
            prompt, self.candidates, prompt.bytes_per_token, self.now
        )
        decision = decide(
            grade=prompt.grade,
            prompt_tokens=prompt.num_tokens,
            roster=self.roster,
            matched=lookup.matched,
            costs=None,
            bytes_per_token=prompt.bytes_per_token,
        )
        self.books.open(decision, 0.0)
        seen = lookup.seen_tokens(self.seen)
        ticket = self.view.dispatched(lookup, "a", self.now)
        self.view.confirmed(ticket, self.now)
        cached = min(shared // size * size, (count - 1) // size * size)
        self.view.realised(ticket, cached, self.now)
        self.books.settle(decision, 200, 1.0, seen, count, cached)
        assert decision.tokens is not None
        return decision.tokens


class TestHonestRepeats:
    """What an engine had and says so was not paid twice, whatever the lengths."""

    @given(st.integers(1, 700), st.sampled_from([1, 16, 32, 128]), st.integers(0, 90))
    def test_of_token_ids_cost_nothing(self, num: int, size: int, more: int) -> None:
        """The same prompt at once, then a longer one that begins with it."""
        fleet = FakeFleet(size)
        for length, shared in [(num, 0), (num, num), (num + more, num)]:
            tokens = array("I", range(length))
            piece = Piece(length, root_hash("m"), tokens=tokens)
            prompt = Prompt("completions", "m", "exact", (piece,), length)
            assert fleet.serve(prompt, length, shared).paid_twice == 0

    @given(
        st.integers(1, 9000),
        st.sampled_from([1, 16, 32, 128]),
        st.floats(1.0, 8.0),
        st.floats(1.0, 8.0),
    )
    def test_of_text_cost_nothing(
        self, num: int, size: int, ours: float, theirs: float
    ) -> None:
        """Our estimate of a token's bytes may be far off the engine's."""
        fleet = FakeFleet(size)
        length, count = ceil(num / ours), ceil(num / theirs)
        root = root_hash("m", grade="estimated")
        piece = Piece(length, root, text=bytes(at % 251 for at in range(num)))
        prompt = Prompt(
            "chat", "m", "estimated", (piece,), length, bytes_per_token=ours
        )
        for shared in (0, count, count):
            assert fleet.serve(prompt, count, shared).paid_twice == 0
