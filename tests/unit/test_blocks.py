"""The hash chain: equal prefixes and nothing else have equal hashes."""

import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv import blocks
from warmroute.policies.kv.blocks import (
    TEXT_BLOCK_BYTES,
    hash_text,
    hash_tokens,
    root_hash,
)

token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=60)
names = st.text(max_size=6)
roots = st.tuples(
    names,
    st.none() | names,
    st.none() | names,
    st.sampled_from(["exact", "estimated"]),
    st.lists(names, max_size=3).map(tuple),
)


def root_of(fields) -> int:
    model, lora, salt, grade, extra = fields
    return root_hash(model, lora=lora, salt=salt, grade=grade, extra=extra)


class TestHashTokens:
    @given(token_ids, st.integers(1, 20), st.integers(0, 2**64 - 1))
    def test_follows_the_definition(self, ids, block_size, root):
        """Each block is xxh3-64 of little-endian u32 ids, seeded by its parent."""
        expected, seed = [], root
        for start in range(0, len(ids) - block_size + 1, block_size):
            content = b"".join(
                token.to_bytes(4, "little") for token in ids[start : start + block_size]
            )
            seed = xxh3_64_intdigest(content, seed)
            expected.append(seed)

        assert expected == hash_tokens(array("I", ids), block_size, root)

    @given(token_ids, token_ids, token_ids)
    def test_common_prefix_and_only_that_is_shared(self, prefix, left, right):
        """Two prompts share exactly the hashes of their common full blocks."""
        one, two = prefix + left, prefix + right
        common = 0
        while common < min(len(one), len(two)) and one[common] == two[common]:
            common += 1
        first = hash_tokens(array("I", one), 4, 7)
        second = hash_tokens(array("I", two), 4, 7)

        shared = [a == b for a, b in zip(first, second, strict=False)]
        assert shared == [i < common // 4 for i in range(len(shared))]

    def test_big_endian_machine_gives_the_same_hashes(self, monkeypatch):
        """Byte order of the machine is undone on a copy, not on the caller's array."""
        tokens = array("I", range(100, 132))
        expected = hash_tokens(tokens, 16, 1)
        swapped = tokens[:]
        swapped.byteswap()
        other = "big" if sys.byteorder == "little" else "little"
        monkeypatch.setattr(blocks.sys, "byteorder", other)

        assert expected == hash_tokens(swapped, 16, 1)
        swapped.byteswap()
        assert tokens == swapped

    @pytest.mark.parametrize(
        ("tokens", "size"),
        [(array("I", [1]), 0), (array("I"), -4), (array("Q", [1]), 16)],
    )
    def test_impossible_blocks_are_refused(self, tokens, size):
        """A block size below one and wide items raise instead of hashing nonsense."""
        with pytest.raises(PolicyError, match="cannot hash blocks of"):
            hash_tokens(tokens, size, 0)

    def test_block_sizes_never_share_a_hash(self):
        """Chains of one prompt over several block sizes are disjoint."""
        tokens = array("I", [5] * 512)
        chains = [hash_tokens(tokens, size, 3) for size in (1, 2, 4, 8, 16, 32, 64)]

        assert sum(map(len, chains)) == len(set().union(*chains))


class TestHashText:
    def test_only_full_blocks_count(self):
        """Text is cut into blocks of 256 bytes; the rest has no hash."""
        text = bytes(range(256)) * 3 + b"rest"
        hashes = hash_text(text, 9)

        assert len(hashes) == 3
        assert hashes == hash_text(text[:-4], 9)
        assert hashes[0] == xxh3_64_intdigest(text[:TEXT_BLOCK_BYTES], 9)
        assert hashes[1] == xxh3_64_intdigest(text[256:512], hashes[0])
        assert hash_text(text[:255], 9) == []


class TestRootHash:
    @given(roots, roots)
    def test_different_fields_have_different_roots(self, one, two):
        """Only equal model, LoRA, salt, grade and extra fields share a root."""
        assert (one == two) == (root_of(one) == root_of(two))

    def test_fields_cannot_run_into_each_other(self):
        """Text that looks like the encoding of two fields is still one field."""
        distinct = {
            root_hash("m"),
            root_hash("m", lora=""),
            root_hash("m", salt=""),
            root_hash("m", lora="a", salt="b"),
            root_hash("m", lora="b", salt="a"),
            root_hash("m", lora="a+1:b"),
            root_hash("m+1:a"),
            root_hash("m-", lora=None),
            root_hash("m", extra=["ab"]),
            root_hash("m", extra=["a", "b"]),
            root_hash("m", grade="estimated"),
        }

        assert len(distinct) == 11

    def test_lone_surrogates_are_hashed(self):
        """A model name that JSON allows and UTF-8 does not is no error."""
        assert root_hash("\ud800") != root_hash("\ud801")
