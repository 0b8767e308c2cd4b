"""The worker's side of what is kept: bytes of blocks that were given back.

A page that was given back may be cleared, or written by another request, in the same
step. So what is to be kept is copied before the runner begins with the step.
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

logger = logging.getLogger("vllm.warmroute")

Pairs = Sequence[tuple[int, int]]
"""Places in a sequence, and the pages that are there from now on."""


class Copies:
    """Hold copies of a runner's pages in host memory, for each request its own.

    Args:
        runner: The ``GPUModelRunner`` or one derived from it.
        caches: The pages of each layer; the first dimension counts them.
    """

    __slots__ = ("_caches", "_copies", "_runner")

    def __init__(self, runner: Any, caches: Sequence[Any]) -> None:
        self._runner = runner
        self._caches = caches
        self._copies: dict[str, dict[int, list[Any]]] = {}

    def __repr__(self) -> str:
        return f"<Copies [Requests: {len(self._copies)}]>"

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return sum(int(cache[0].nbytes) for cache in self._caches)

    def updating(self, update: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the runner's *update* of its batch that copies pages first."""

        def copy_and_update(output: Any) -> Any:
            for name in getattr(output, DROPPED, ()):
                self._copies.pop(name, None)
            copied: dict[str, list[int]] = getattr(output, COPIED, {})
            for name, blocks in copied.items():
                try:
                    self._copy(name, blocks)
                except Exception:  # the step goes on, and only these cannot return
                    logger.exception("warmroute: blocks could not be copied")
            return update(output)

        return copy_and_update

    def put(self, name: str, pairs: Pairs) -> None:
        """Put copies on pages, and drop them.

        Raises:
            KeyError: There is no such copy; nothing was changed.
        """
        copies = self._copies[name]
        found = [(page, copies[at]) for at, page in pairs]
        for page, copy in found:
            for cache, kept in zip(self._caches, copy, strict=True):
                cache[page].copy_(kept)
        for at, _ in pairs:
            del copies[at]
        if not copies:
            del self._copies[name]

    def _copy(self, name: str, blocks: Sequence[int]) -> None:
        pages = self._runner.requests[name].block_ids[0]
        copies = self._copies.setdefault(name, {})
        for at in blocks:
            copies[at] = [cache[pages[at]].clone() for cache in self._caches]


def open_copies(worker: Any) -> int | str:
    """Let a worker copy what is given back; return the bytes of a block.

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
        return int(getattr(runner, OPEN_COPIES).block_bytes)
    except Exception as error:
        logger.exception("warmroute: nothing can be copied")
        return f"unsupported: a look at the worker failed: {error!r}"


def put_back(worker: Any, name: str, pairs: Pairs) -> str | None:
    """Put blocks back into a request between two steps; say why not, if so.

    A method of every worker of vLLM; never raises.
    """
    try:
        runner = worker.model_runner
        if name not in runner.requests:
            return "the worker does not run it"
        getattr(runner, OPEN_COPIES).put(name, pairs)
        getattr(runner, OPEN_HOLES).put_in(name, pairs)
    except Exception as error:
        logger.exception("warmroute: blocks could not be put back")
        return repr(error)
    return None
