"""Tokens made piece by piece are those of the whole text, whatever the tokenizer."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.token_files import byte_tokenizer, mark, metaspace_tokenizer, tiny_files

from warmroute.adapters.tokens.errors import NotExact
from warmroute.proxy.prompt.cuts import SafeCuts
from warmroute.proxy.prompt.encoder import Encoder
from warmroute.proxy.prompt.memo import TokenMemo

MARKS = [
    mark("<|a|>"),
    mark("<|a|>b"),
    mark("<|end|>", rstrip=True),
    mark("<|left|>", lstrip=True),
    mark("word", single_word=True),
    mark(" <s>"),
    mark("\n\n", special=False),
    mark("<|n|>", normalized=True),
    mark("|>hello", special=False),
]
TOKENIZERS = {
    "bytes": byte_tokenizer(MARKS),
    "bytes with a space in front": byte_tokenizer(MARKS, prefix_space=True),
    "bytes behind NFC": byte_tokenizer(MARKS, normalizes=True, first="<|a|>"),
    "no marks": byte_tokenizer([]),
    "space marks at the front": metaspace_tokenizer(MARKS, "first"),
    "space marks everywhere": metaspace_tokenizer(MARKS, "always"),
    "space marks by normalisation": metaspace_tokenizer(MARKS, "replaced"),
}
PIECES = st.sampled_from(
    [
        *(token.content for token in MARKS),
        *("<|a", "|>", "hello", " ", "  ", "\n", "e\u0301", "é", "世", "aba", "<|im"),
        *("word", " word ", "swordx", "<|", "s>", "\t", "\u00a0", "\U0001f327\ufe0f"),
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join)


@pytest.fixture(params=TOKENIZERS, scope="module")
def tokenizer(request):
    return TOKENIZERS[request.param]


class TestEncoder:
    @settings(max_examples=250, deadline=None)
    @given(data=st.data())
    def test_a_growing_text_has_the_tokens_of_the_whole(self, tokenizer, data):
        """Each turn knows the pieces of those before it."""
        encoder = Encoder(tokenizer, TokenMemo(5000))
        text = ""
        for _ in range(3):
            text += data.draw(TEXTS)
            is_framed = data.draw(st.booleans())
            draft = encoder.draft([(text, is_framed)])
            whole = tokenizer.encode(text, add_special_tokens=is_framed).ids
            assert list(encoder.complete(draft)[0]) == whole

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    def test_the_parts_join_to_the_text(self, tokenizer, text):
        parts = SafeCuts(tokenizer).split(text)
        assert "".join(parts) == text
        assert all(parts)

    def test_only_what_is_new_is_tokenized(self):
        encoder = Encoder(TOKENIZERS["bytes"], TokenMemo())
        encoder.complete(encoder.draft([("<|a|>hello" * 3 + "<|end|>", False)]))
        draft = encoder.draft([("<|a|>hello<|end|> new", False)])
        assert draft.missing_texts == ["<|end|> new"]
        assert draft.missing_chars == len("<|end|> new")

    def test_several_texts_keep_their_own_tokens(self):
        encoder = Encoder(TOKENIZERS["bytes behind NFC"], TokenMemo())
        made = encoder.complete(
            encoder.draft([("ab", True), ("", False), ("h", False)])
        )
        plain = TOKENIZERS["bytes behind NFC"]
        assert list(made[0]) == plain.encode("ab").ids
        assert made[1:] == (
            array("I"),
            array("I", plain.encode("h", add_special_tokens=False).ids),
        )

    def test_a_frame_that_is_not_around_the_text_is_not_guessed(self):
        tokenizer = byte_tokenizer([])
        encoder = Encoder(tokenizer, TokenMemo())
        encoder._frame = None
        with pytest.raises(NotExact):
            encoder.draft([("a", True)])
        assert encoder.draft([("a", False)]).missing == [0]


class TestCuts:
    def test_cuts_are_in_front_of_marks_that_take_nothing_before_them(self):
        cuts = SafeCuts(TOKENIZERS["bytes"])
        text = "x<|a|>y <|left|>z<|end|>  q<|a|>b"
        assert cuts.split(text) == ["x", "<|a|>y <|left|>z", "<|end|>  q", "<|a|>b"]

    def test_the_longest_of_the_leftmost_marks_counts(self):
        """A mark inside of another, or of an unsafe one, is no mark."""
        cuts = SafeCuts(TOKENIZERS["bytes"])
        assert cuts.split("<|a|>b<|a|>hello") == ["<|a|>b", "<|a|>hello"]

    def test_without_marks_nothing_is_cut(self):
        cuts = SafeCuts(TOKENIZERS["no marks"])
        assert cuts.split("<|a|>hello") == ["<|a|>hello"]
        assert cuts.split("") == []

    def test_the_chat_marks_of_the_tiny_model_are_cuts(self):
        cuts = SafeCuts(tiny_files().tokenizer)
        assert cuts.split("<|im_start|>user\nhi<|im_end|>\n") == [
            "<|im_start|>user\nhi",
            "<|im_end|>\n",
        ]
