"""Text to tokens and back: whole characters only, and the same text at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from warmroute.adapters.embedded.model.tiny import tiny_tokenizer
from warmroute.adapters.tokens.detokenizer import (
    TokenBytes,
    byte_alphabet,
    sentencepiece,
)
from warmroute.adapters.tokens.tokenizer import ChatTokenizer, read_token_bytes

TINY = tiny_tokenizer()
FIRST_BYTE = 3
texts = st.text(st.characters(exclude_categories=["Cs"]))


def ids_of(data: bytes) -> list[int]:
    return [FIRST_BYTE + byte for byte in data]


@given(texts)
def test_texts_survive_the_round_trip(text: str) -> None:
    assert TINY.decode(TINY.encode(text), skip_special=False) == text


@given(texts)
def test_pieces_are_whole_characters(text: str) -> None:
    """Each piece ends where a character ends, and nothing is held back long."""
    stream, so_far = TINY.stream(), ""
    for token_id in ids_of(text.encode()):
        so_far += stream.push(token_id)
        assert text.startswith(so_far)
    assert so_far == text
    assert stream.flush() == ""


@given(st.binary(max_size=40))
def test_any_bytes_stream_to_what_they_decode_to(data: bytes) -> None:
    """Models emit broken bytes too: they become U+FFFD, and what follows is kept."""
    stream = TINY.stream()
    pieces = [stream.push(token_id) for token_id in ids_of(data)]
    text = "".join(pieces) + stream.flush()
    assert text == TINY.decode(ids_of(data)) == data.decode("utf-8", "replace")


@given(st.lists(st.integers(0, 258), max_size=30), st.booleans())
def test_decoding_is_that_of_the_library(ids: list[int], skip: bool) -> None:
    library = Tokenizer.from_str(TINY._tokenizer.to_str())
    assert TINY.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


def test_special_tokens_are_recognised_and_left_out() -> None:
    ids = TINY.encode("<|im_start|>a<|im_end|>")
    assert ids == [1, *ids_of(b"a"), 2]
    assert TINY.decode(ids) == "a"
    assert TINY.decode(ids, skip_special=False) == "<|im_start|>a<|im_end|>"
    assert TINY.token(1) == "<|im_start|>"
    assert TINY.token(ids_of(b"\xe6")[0]) == "\ufffd"


def test_ids_outside_the_vocabulary_are_no_text() -> None:
    assert TINY.decode([-1, 259, 1 << 30]) == ""
    assert TINY.token(259) == ""


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def sentencepiece_tokenizer() -> Tokenizer:
    """Llama 2's way: words begin with U+2581, unknown letters fall back to bytes."""
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "\u2581hi", "h", "i"]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    merges = [("h", "i")] if "hi" in vocabulary else []
    model = models.BPE(
        vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return tokenizer


@given(st.lists(st.integers(258, 261), max_size=12))
def test_sentencepiece_words_decode_as_in_the_library(ids: list[int]) -> None:
    tokenizer = ChatTokenizer(sentencepiece_tokenizer(), None, ())
    expected = sentencepiece_tokenizer().decode(ids)
    assert tokenizer.decode(ids) == expected


@given(texts.filter(lambda text: not text.startswith(" ")))
def test_sentencepiece_bytes_are_characters_again(text: str) -> None:
    tokenizer = ChatTokenizer(sentencepiece_tokenizer(), None, ())
    ids = [1, *(2 + byte for byte in text.encode())]
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) == tokenizer.decode(ids) == text


def test_only_the_first_space_of_a_text_is_stripped() -> None:
    source = TokenBytes([b"", b" a", b" "], strips_space=True)
    assert source.join([0, 1, 1], skip_special=True) == "a a"
    assert source.join([2, 2, 1], skip_special=True) == "  a"


@pytest.mark.parametrize(
    ("token", "data"),
    [("<0xE6>", b"\xe6"), ("\u2581hi", b" hi"), ("<0xE6", b"<0xE6")],
)
def test_sentencepiece_tokens_stand_for_bytes(token: str, data: bytes) -> None:
    assert sentencepiece(token) == data


@pytest.mark.parametrize(("scheme", "strips"), [("always", True), ("never", False)])
def test_a_metaspace_decoder_strips_what_it_prepended(
    scheme: str, strips: bool
) -> None:
    tokenizer = sentencepiece_tokenizer()
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    assert read_token_bytes(tokenizer).strips_space is strips
