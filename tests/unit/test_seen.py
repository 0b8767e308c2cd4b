"""The memory of sent blocks: never a false "seen", forgets by overwriting."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.kv.blocks import hash_text
from warmroute.policies.kv.seen import SeenBlocks


def chain(seed: int, length: int) -> list[int]:
    return hash_text(bytes(256 * length), seed)


class TestSeenBlocks:
    @given(st.lists(st.integers(0, 200), max_size=12), st.integers(0, 200))
    def test_roomy_table_counts_exactly(self, lengths, probe):
        """With slots to spare the longest sent prefix is found."""
        seen = SeenBlocks()
        blocks = chain(1, 200)
        for length in lengths:
            seen.add(blocks[:length])

        assert min(probe, max(lengths, default=0)) == seen.prefix_seen(blocks[:probe])

    @given(st.lists(st.integers(1, 60), max_size=20), st.integers(0, 6))
    def test_crowded_table_never_claims_too_much(self, lengths, bits):
        """However small the table, no block counts that was not sent."""
        seen = SeenBlocks(2**bits)
        sent: set[int] = set()
        for seed, length in enumerate(lengths):
            blocks = chain(seed % 3, length)
            known = 0
            while known < length and blocks[known] in sent:
                known += 1
            assert seen.observe(blocks) <= known
            sent.update(blocks)

    @given(st.integers(0, 4))
    def test_empty_slots_match_no_hash(self, bits):
        """Hash 0 is not taken for an empty slot."""
        seen = SeenBlocks(2**bits)
        seen.add([1])

        assert seen.prefix_seen([0]) == 0
        seen.add([0])
        assert seen.prefix_seen([0]) == 1

    def test_observe_adds_what_was_not_seen(self):
        """Observing a longer prompt counts the old part and learns the new one."""
        seen = SeenBlocks()
        blocks = chain(2, 50)

        assert seen.observe(blocks[:30]) == 0
        assert seen.observe(blocks) == 30
        assert seen.observe(blocks) == 50
        assert seen.observe([]) == 0

    @given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
    def test_known_blocks_need_not_be_asked_for(self, sent, known, length):
        """What is known to be sent gives the same count and the same memory."""
        blocks = chain(4, 40)
        one, two = SeenBlocks(), SeenBlocks()
        for seen in (one, two):
            seen.add(blocks[:sent])
        known = min(known, sent, length)

        assert two.observe(blocks[:length]) == one.observe(blocks[:length], known)
        assert two.prefix_seen(blocks) == one.prefix_seen(blocks) == max(sent, length)

    def test_single_overwritten_block_is_bridged(self):
        """One forgotten block does not hide those behind it."""
        seen = SeenBlocks()
        blocks = chain(3, 64)
        seen.add(blocks)
        for victim in (0, 1, 31, 32):
            seen.add([blocks[victim] ^ (1 << 60)])

        assert seen.prefix_seen(blocks) == 64

    def test_memory_comes_with_the_first_block(self):
        """An idle table costs nothing, a used one 8 bytes a slot."""
        seen = SeenBlocks(1000)

        assert seen.observe([]) == 0
        assert repr(seen) == "<SeenBlocks [Slots: 1024, 0 bytes]>"
        seen.add([7])
        assert repr(seen) == "<SeenBlocks [Slots: 1024, 8192 bytes]>"
