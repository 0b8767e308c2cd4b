"""The worker's side of what is kept: bytes of blocks that were given back.

A page that was given back may be cleared, or written by another request, in the same
step. So what is to be kept is copied before the runner begins with the step. A block
that is larger than a slice is copied in parts, each of some layers.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from warmroute.adapters.vllm.plugin.names import (
    COPIED,
    DROPPED,
    OPEN_COPIES,
    OPEN_HOLES,
)
from warmroute.adapters.vllm.plugin.slices import layers_of, num_parts

logger = logging.getLogger("vllm.warmroute")

Pairs = Sequence[tuple[int, int]]
"""Places in a sequence, each with a part of its block, or with its page from now on."""


class Copies:
    """Hold copies of a runner's pages in host memory, for each request its own.

    Args:
        runner: The ``GPUModelRunner`` or one derived from it.
        caches: The pages of each layer; the first dimension counts them.
    """

    __slots__ = ("_caches", "_copies", "_parts", "_runner")

    def __init__(self, runner: Any, caches: Sequence[Any]) -> None:
        self._runner = runner
        self._caches = caches
        self._copies: dict[str, dict[int, list[Any]]] = {}
        self._parts = num_parts(self.block_bytes, len(caches))

    def __repr__(self) -> str:
        return f"<Copies [Requests: {len(self._copies)}]>"

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return sum(int(cache[0].nbytes) for cache in self._caches)

    @property
    def parts(self) -> int:
        """In how many parts a block is copied."""
        return self._parts

    def updating(self, update: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the runner's *update* of its batch that copies pages first."""

        def copy_and_update(output: Any) -> Any:
            for name in getattr(output, DROPPED, ()):
                self._copies.pop(name, None)
            copied: dict[str, Pairs] = getattr(output, COPIED, {})
            for name, parts in copied.items():
                try:
                    self._copy(name, parts)
                except Exception:  # the step goes on, and only these cannot return
                    logger.exception("warmroute: blocks could not be copied")
            return update(output)

        return copy_and_update

    def put(self, name: str, pairs: Pairs, part: int) -> bool:
        """Put a part of copies on pages; drop the copies behind the last part.

        Returns:
            Whether it was the last one.

        Raises:
            KeyError: There is no such copy; nothing was changed.
        """
        copies = self._copies[name]
        layers = self._layers(part)
        found = [(page, copies[at]) for at, page in pairs]
        if any(copy[layer] is None for _, copy in found for layer in layers):
            raise KeyError(name)
        for page, copy in found:
            for layer in layers:
                self._caches[layer][page].copy_(copy[layer])
        if part + 1 < self._parts:
            return False
        for at, _ in pairs:
            del copies[at]
        if not copies:
            del self._copies[name]
        return True

    def _copy(self, name: str, parts: Pairs) -> None:
        pages = self._runner.requests[name].block_ids[0]
        copies = self._copies.setdefault(name, {})
        for at, part in parts:
            copy = copies.setdefault(at, [None] * len(self._caches))
            for layer in self._layers(part):
                copy[layer] = self._caches[layer][pages[at]].clone()

    def _layers(self, part: int) -> range:
        return layers_of(part, self._parts, len(self._caches))


def open_copies(worker: Any) -> tuple[int, int] | str:
    """Let a worker copy what is given back; return the bytes and parts of a block.

    A method of every worker of vLLM, to be asked once it can skip blocks. Returns why
    it cannot, if so; never raises.
    """
    try:
        runner = worker.model_runner
        caches = list({one.data_ptr(): one for one in runner.kv_caches}.values())
        count = runner.kv_cache_config.num_blocks
        if any(one.shape[0] != count or one.device.type != "cpu" for one in caches):
            return "unsupported: pages are kept in a way that was not tried"
        if not hasattr(runner, OPEN_COPIES):
            copies = Copies(runner, caches)
            runner._update_states = copies.updating(runner._update_states)
            setattr(runner, OPEN_COPIES, copies)
        opened: Copies = getattr(runner, OPEN_COPIES)
        return opened.block_bytes, opened.parts
    except Exception as error:
        logger.exception("warmroute: nothing can be copied")
        return f"unsupported: a look at the worker failed: {error!r}"


def put_back(worker: Any, name: str, pairs: Pairs, part: int) -> str | None:
    """Put a part of blocks on pages between two steps; say why not, if so.

    With the last part the request has them back. A method of every worker of vLLM;
    never raises.
    """
    try:
        runner = worker.model_runner
        if name not in runner.requests:
            return "the worker does not run it"
        if getattr(runner, OPEN_COPIES).put(name, pairs, part):
            getattr(runner, OPEN_HOLES).put_in(name, pairs)
    except Exception as error:
        logger.exception("warmroute: blocks could not be put back")
        return repr(error)
    return None
