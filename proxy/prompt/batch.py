"""The prompts of one body, as they are read out of it, within bounds."""

from array import array
from collections.abc import Sequence
from typing import Final

from warmroute.proxy.prompt.bodies import Prompts

BYTES_PER_ID: Final = 4
# Between two slices another thread may run: large bodies are read beside the loop.
_SLICE_IDS: Final = 1 << 16
MAX_PIECES: Final = 64
MAX_KEPT_BYTES: Final = 4 << 20


class Batch:
    """Collect prompts; the first always stays, the others within bounds.

    At most 64 prompts and, beyond the first, 4 MiB are kept with their content:
    rerank repeats its query in each pair, so a body may name far more text than
    it holds. The others only count.
    """

    __slots__ = ("has_media", "is_exact", "kept", "kept_bytes", "media", "spare_bytes")

    def __init__(self) -> None:
        self.kept: list[bytes | array[int]] = []
        self.kept_bytes = 0
        self.spare_bytes = 0
        self.is_exact = False
        self.has_media = False
        self.media = ""

    def __repr__(self) -> str:
        return f"<Batch [{len(self.kept)} kept, {self.spare_bytes} bytes spare]>"

    def add_text(self, text: bytes) -> None:
        """Add a prompt in canonical bytes; an empty one is left out."""
        if text and self._take(len(text)):
            self.kept.append(text)

    def add_pair(self, first: bytes, second: bytes) -> None:
        """Add a prompt made of two texts, joined only where it is kept."""
        size = len(first) + len(second)
        if size and self._take(size):
            self.kept.append(first + second)

    def add_ids(self, ids: Sequence[int]) -> None:
        """Add token ids; raises OverflowError or TypeError unless all are u32."""
        tokens = array("I", ids[:_SLICE_IDS])
        for start in range(_SLICE_IDS, len(ids), _SLICE_IDS):
            tokens += array("I", ids[start : start + _SLICE_IDS])
        self.is_exact = True
        if tokens and self._take(BYTES_PER_ID * len(tokens)):
            self.kept.append(tokens)

    def add_prompts(self, prompts: Prompts) -> bool:
        """Add a text, texts, token ids or lists of ids; False when there are none.

        Raises TypeError on a mixture of kinds.
        """
        if prompts is None:
            return False
        if isinstance(prompts, str):
            self.add_text(prompts.encode())
        elif not prompts or isinstance(prompts[0], int):
            self.add_ids(prompts)  # type: ignore[arg-type]
        elif isinstance(prompts[0], str):
            for text in prompts:
                self.add_text(str.encode(text))  # type: ignore[arg-type]
        else:
            for ids in prompts:
                self.add_ids(ids)  # type: ignore[arg-type]
        return True

    def _take(self, size: int) -> bool:
        kept = self.kept
        if kept and (
            len(kept) >= MAX_PIECES or self.kept_bytes + size > MAX_KEPT_BYTES
        ):
            self.spare_bytes += size
            return False
        self.kept_bytes += size
        return True
