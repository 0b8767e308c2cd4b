"""A choice: why it ends, and which text and tokens it gives."""

import numpy as np
from unit.engine_rig import EOS, VOCAB, Letters

from warmroute.adapters.embedded.engine.choice import Choice
from warmroute.adapters.embedded.engine.request import GenerationRequest


class Torn(Letters):
    """Never completes its last character."""

    def flush(self):
        return "\ufffd"


def choice(max_tokens=10, text=None, **fields):
    request = GenerationRequest("r", [1], temperature=0.0, **fields)
    return Choice(request, 0, max_tokens, (EOS,), text or Letters())


def feed(one, letters):
    deltas = []
    for letter in letters:
        logits = np.zeros(VOCAB, np.float32)
        logits[ord(letter) - ord("a") + 1 if letter != "." else EOS] = 9
        deltas.append(one.advance(logits))
        if one.finish_reason:
            break
    return deltas


class TestChoice:
    def test_end_token_stops_and_is_no_text(self):
        """The end token is among the tokens, not in the text."""
        deltas = feed(choice(), "ab.")

        assert [delta.text for delta in deltas] == ["a", "b", ""]
        assert deltas[-1].token_ids == [EOS]
        assert deltas[-1].finish_reason == "stop"

    def test_ignore_eos_goes_on(self):
        """The end token is a token like others then."""
        deltas = feed(choice(ignore_eos=True), "a.b")

        assert [delta.finish_reason for delta in deltas] == [None] * 3

    def test_last_token_ends_with_length(self):
        """After max_tokens the reason is length."""
        deltas = feed(choice(max_tokens=2), "abc")

        assert [delta.finish_reason for delta in deltas] == [None, "length"]

    def test_stop_string_is_cut_and_named(self):
        """The text ends before it; the tokens include it."""
        deltas = feed(choice(stop=("bc",)), "abcd")

        assert "".join(delta.text for delta in deltas) == "a"
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "bc")
        assert sum(len(delta.token_ids) for delta in deltas) == 3

    def test_text_held_back_comes_out_at_the_end(self):
        """The beginning of a stop string is text when the tokens run out."""
        deltas = feed(choice(max_tokens=2, stop=("bc",)), "ab")

        assert "".join(delta.text for delta in deltas) == "ab"

    def test_stop_string_before_min_tokens_is_text(self):
        """It counts only when enough tokens are there."""
        deltas = feed(choice(stop=("b",), min_tokens=2), "abab")

        assert "".join(delta.text for delta in deltas) == "aba"

    def test_torn_character_comes_out_at_the_end(self):
        """What the text stream still has is flushed."""
        deltas = feed(choice(max_tokens=2, text=Torn()), "ab")

        assert deltas[-1].text == "b\ufffd"

    def test_abort_gives_no_token(self):
        """A choice that is ended from outside says so."""
        one = choice(stop=("bc",))
        feed(one, "ab")
        delta = one.end("abort")

        assert (delta.token_ids, delta.text, delta.finish_reason) == ([], "b", "abort")

    def test_logprobs_come_with_each_token_when_asked(self):
        """None without, one a token with logprobs."""
        assert feed(choice(), "a")[0].logprobs == ()
        assert feed(choice(logprobs=0), "a")[0].logprobs[0].token_id == 1
