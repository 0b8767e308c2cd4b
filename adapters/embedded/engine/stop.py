"""Stop strings, found across the borders of tokens."""

from collections.abc import Iterable


class StopMatcher:
    """Pass text on up to the first stop string, which is cut off.

    The first one is the one that ends first, so that the cut does not depend on
    how the text is split into pieces. Text that may be the beginning of a stop
    string is held back until it is known not to be.

    Args:
        stops: Stop strings, none of them empty.
    """

    __slots__ = ("_held", "_longest", "_stops", "found")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """Return the text that is certain now; sets `found` at a stop string.

        O(len(piece) * stops); takes nothing more once a stop was found.
        """
        if not self._stops:
            return piece
        if self.found is not None:
            return ""
        text = self._held + piece
        match = self._first_match(text)
        if match is not None:
            start, self.found = match
            self._held = ""
            return text[:start]
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what is held back: no more text will come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [
            (at + len(stop), at, stop)
            for stop in self._stops
            if (at := text.find(stop)) >= 0
        ]
        return min(found)[1:] if found else None

    def _beginning(self, text: str) -> int:
        # Longest end of the text with which some stop string begins.
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
