"""Stop strings: cut exactly, wherever the tokens break."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.adapters.embedded.engine.stop import StopMatcher


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read one character after the other, until the text ends with a stop."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


class TestStopMatcher:
    def test_cuts_a_stop_string_that_three_pieces_make(self):
        """What is emitted ends where the stop string begins."""
        matcher = StopMatcher(["\n\nUser"])
        pieces = ["Hello\n", "\nUs", "er: hi"]

        assert [matcher.push(piece) for piece in pieces] == ["Hello", "", ""]
        assert matcher.found == "\n\nUser"

    def test_holds_back_only_what_may_become_a_stop_string(self):
        """Text that cannot be the beginning of one is passed on at once."""
        matcher = StopMatcher(["abc"])

        assert matcher.push("xxab") == "xx"
        assert matcher.push("d") == "abd"
        assert matcher.flush() == ""

    def test_flush_gives_what_was_held_back(self):
        """The beginning of a stop string that never came is text."""
        matcher = StopMatcher(["abc"])
        matcher.push("xab")

        assert matcher.flush() == "ab"
        assert matcher.found is None

    def test_without_stop_strings_nothing_is_held(self):
        """Every piece is passed on."""
        assert StopMatcher([]).push("abc") == "abc"

    @given(
        st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
        st.lists(st.text("ab", max_size=5), max_size=8),
    )
    def test_equals_reading_character_by_character(self, stops, pieces):
        """The cut depends on the text alone, not on its pieces."""
        matcher = StopMatcher(stops)
        text = "".join(matcher.push(piece) for piece in pieces)
        if matcher.found is None:
            text += matcher.flush()

        assert (text, matcher.found) == naive("".join(pieces), stops)
