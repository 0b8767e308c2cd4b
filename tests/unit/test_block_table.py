"""The block table: growth, copy-on-write, fork, evicted middles, and the null page."""

import pytest

from warmroute.policies.kv.block_table import BlockTable, Copy
from warmroute.policies.kv.pool import BlockPool, PageMisuse, PoolExhausted


def filled(pool: BlockPool, num_tokens: int) -> BlockTable:
    table = BlockTable(pool.block_size)
    table.reserve(pool, num_tokens)
    return table


class TestGrowth:
    def test_a_table_has_as_many_pages_as_its_tokens_need(self):
        """A page is taken when the first token goes into it, not before."""
        pool = BlockPool(9, 4)
        table = filled(pool, 4)
        assert repr(table) == "<BlockTable [Tokens: 4, pages: [1]]>"
        table.reserve(pool, 1)
        assert repr(table) == "<BlockTable [Tokens: 5, pages: [1, 2]]>"
        assert table.reserve(pool, 3) == []
        assert repr(table) == "<BlockTable [Tokens: 8, pages: [1, 2]]>"

    def test_a_slot_is_found_through_the_page(self):
        """Neighbours in the sequence need not be neighbours in memory."""
        pool = BlockPool(9, 4)
        table, _ = filled(pool, 4), filled(pool, 4)
        table.reserve(pool, 2)

        assert [table.slot(position) for position in (0, 3, 4, 5)] == [4, 7, 12, 13]

    @pytest.mark.parametrize("position", [-1, 6])
    def test_a_position_outside_has_no_slot(self, position: int):
        """Slots end where the tokens end, though the page goes on."""
        table = filled(BlockPool(9, 4), 6)
        with pytest.raises(PageMisuse, match=f"position {position} has no slot"):
            table.slot(position)

    def test_growing_by_less_than_nothing_is_refused(self):
        """Shrinking has a verb of its own."""
        pool = BlockPool(9, 4)
        table = filled(pool, 6)
        with pytest.raises(PageMisuse, match=r"cannot reserve -1 tokens .*; truncate"):
            table.reserve(pool, -1)
        assert repr(table) == "<BlockTable [Tokens: 6, pages: [1, 2]]>"

    def test_exhaustion_leaves_the_table_unchanged(self):
        """Copy and growth are had together or not at all."""
        pool = BlockPool(4, 4)
        table = filled(pool, 6)
        twin = table.fork(pool)
        before = repr(twin)
        assert twin.num_missing(pool, 5) == 2
        with pytest.raises(PoolExhausted, match="2 pages asked, 1 free"):
            twin.reserve(pool, 5)

        assert repr(twin) == before
        pool.check_integrity()


class TestSharing:
    def test_the_first_writer_copies_the_last_one_does_not(self):
        """A shared partial page is copied until one user of it is left."""
        pool = BlockPool(9, 4)
        table = filled(pool, 6)
        twin, third = table.fork(pool), table.fork(pool)

        assert twin.reserve(pool, 1) == [Copy(src=2, dst=3)]
        assert third.reserve(pool, 1) == [Copy(src=2, dst=4)]
        assert table.reserve(pool, 1) == []
        assert [table.pages, twin.pages, third.pages] == [[1, 2], [1, 3], [1, 4]]

    def test_a_full_page_is_never_copied(self):
        """Growth behind a shared page that is full takes a page of its own."""
        pool = BlockPool(9, 4)
        table = filled(pool, 4)
        twin = table.fork(pool)

        assert twin.reserve(pool, 1) == []
        assert [table.pages, twin.pages] == [[1], [1, 2]]

    def test_growing_by_nothing_copies_nothing(self):
        """A copy is made for a write only."""
        pool = BlockPool(9, 4)
        twin = filled(pool, 6).fork(pool)

        assert twin.reserve(pool, 0) == []
        assert (twin.pages, pool.num_referenced) == ([1, 2], 2)

    def test_writing_into_a_registered_page_copies_it(self):
        """Cutting back into cached content does not spoil it for others."""
        pool = BlockPool(9, 4)
        table = filled(pool, 4)
        pool.register(1, 10, None, 0)
        table.truncate(pool, 3)

        assert table.reserve(pool, 1) == [Copy(src=1, dst=2)]
        assert pool.lookup([10]) == [1]

    def test_best_of_eight_takes_181_blocks(self):
        """2,000 tokens of prompt are there once; 8 answers of 100 take 7 blocks each.

        Contiguous slabs would take 8 * 2,100 = 16,800 slots instead of 2,896.
        """
        pool = BlockPool(300, 16)
        prompt = filled(pool, 2_000)
        answers = [prompt, *(prompt.fork(pool) for _ in range(7))]
        copies = [answer.reserve(pool, 1) for _ in range(100) for answer in answers]

        assert pool.num_referenced == 181 == 2_896 / 16
        assert not any(copies)
        for answer in answers:
            answer.free(pool)
        assert pool.num_referenced == 0

    def test_best_of_eight_inside_a_block_copies_seven_times(self):
        """A prompt that ends inside a block costs one copy an answer but one."""
        pool = BlockPool(300, 16)
        prompt = filled(pool, 2_005)
        answers = [prompt, *(prompt.fork(pool) for _ in range(7))]
        copies = [answer.reserve(pool, 1) for _ in range(100) for answer in answers]

        assert sum(map(len, copies)) == 7
        assert pool.num_referenced == 125 + 8 * 7


class TestAdoption:
    def test_cached_pages_are_shared(self):
        """A request starts behind the prefix that somebody else computed."""
        pool = BlockPool(9, 4)
        first, second = filled(pool, 8), BlockTable(4)
        second.adopt(pool, first.pages, 8)
        second.reserve(pool, 1)

        assert (second.pages, second.num_tokens) == ([1, 2, 3], 9)
        assert pool.refs(1) == 2

    def test_a_partly_matched_page_is_copied_at_the_first_write(self):
        """Token-granular hits adopt part of a page, and leave it to its owner."""
        pool = BlockPool(9, 4)
        first, second = filled(pool, 8), BlockTable(4)
        second.adopt(pool, first.pages, 6)

        assert second.reserve(pool, 1) == [Copy(src=2, dst=3)]

    def test_pages_have_to_fit_the_tokens(self):
        """A table that is in use, or pages of another length, are refused."""
        pool = BlockPool(9, 4)
        first, second = filled(pool, 8), BlockTable(4)
        for table, num_tokens in ((second, 4), (second, 9), (first, 8)):
            with pytest.raises(PageMisuse, match="cannot adopt 2 pages"):
                table.adopt(pool, first.pages, num_tokens)
        assert pool.refs(1) == 1


class TestShrinking:
    def test_an_evicted_middle_is_the_null_page(self):
        """Its page goes back, and its positions have no slots any more."""
        pool = BlockPool(9, 4)
        table = filled(pool, 10)
        table.drop(pool, 1)

        assert table.pages == [1, 0, 3]
        assert pool.num_referenced == 2
        with pytest.raises(PageMisuse, match="position 5 has no slot"):
            table.slot(5)
        table.drop(pool, 1)
        table.fork(pool).free(pool)
        table.free(pool)
        pool.check_integrity()
        assert pool.num_referenced == 0

    @pytest.mark.parametrize("index", [-1, 2, 3])
    def test_only_full_pages_are_dropped(self, index: int):
        """The page that is written into next stays."""
        pool = BlockPool(9, 4)
        with pytest.raises(PageMisuse, match=r"allowed: full pages, 0 to 1"):
            filled(pool, 10).drop(pool, index)

    def test_truncating_gives_back_whole_pages(self):
        """Pages without a token left go; growing back is not undone."""
        pool = BlockPool(9, 4)
        table = filled(pool, 10)
        table.truncate(pool, 5)
        table.truncate(pool, 7)

        assert repr(table) == "<BlockTable [Tokens: 5, pages: [1, 2]]>"
        assert pool.num_referenced == 2

    def test_an_evicted_page_is_not_cut_into(self):
        """What is left of it would have to be written next, and is nowhere."""
        pool = BlockPool(9, 4)
        table = filled(pool, 10)
        table.drop(pool, 1)
        with pytest.raises(PageMisuse, match=r"multiples of 4 there"):
            table.truncate(pool, 6)
        table.truncate(pool, 4)

        assert table.pages == [1]

    def test_freeing_twice_does_no_harm(self):
        """Exits may overlap; pages go back once."""
        pool = BlockPool(9, 4)
        table = filled(pool, 10)
        table.free(pool)
        table.free(pool)

        assert repr(table) == "<BlockTable [Tokens: 0, pages: []]>"
        assert pool.num_free == 8
