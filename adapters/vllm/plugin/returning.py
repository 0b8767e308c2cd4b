"""Blocks that a running request gave back, brought back into it."""

from collections.abc import Iterator, Sequence
from typing import Any

from warmroute.adapters.kv_plugin.jobs import Part
from warmroute.adapters.vllm.plugin.block_budget import NUM_OPEN
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.limits import (
    ALL,
    Limit,
    Running,
    has_holes,
    num_needed,
)
from warmroute.adapters.vllm.plugin.names import BUDGET, PUT_BACK
from warmroute.adapters.vllm.plugin.request_names import is_named
from warmroute.policies.errors import ClientError


class Returning:
    """Put copies of blocks on new pages of the requests that gave them back.

    Each slice takes pages, has the worker fill them, and puts them into the tables of
    both sides, so that the engine may step behind any of them. Behind a part of a block
    it may, too: until its last part, the page is in no table.

    Args:
        scheduler: The engine's.
        budgets: Of its requests, with the account of the copies.
    """

    __slots__ = ("_budgets", "_scheduler")

    def __init__(self, scheduler: Any, budgets: Budgets) -> None:
        self._scheduler = scheduler
        self._budgets = budgets

    def __repr__(self) -> str:
        return f"<Returning from {self._budgets.kept!r}>"

    def bring_back(self, name: str, hold_tokens: int | None) -> Iterator[Part]:
        """Bring back what requests gave back; the newest of it, as far as they may.

        Args:
            name: Of the requests, as their client knows it.
            hold_tokens: Most tokens that each holds from now on; all if None.

        Raises:
            ClientError: 409, none of them runs under a budget, or pages are missing;
                400, no request can hold so little.
        """
        meant = self._meant(name)
        holds = [self._hold(limit, hold_tokens) for _, limit in meant]
        wanted = [
            self._wanted(request, limit, hold)
            for (request, limit), hold in zip(meant, holds, strict=True)
        ]
        self._check_room(sum(map(len, wanted)))
        yield {"named": sum(limit.num_given for _, limit in meant)}
        for (request, limit), hold, blocks in zip(meant, holds, wanted, strict=True):
            limit.num_held = hold
            for some in self._slices(blocks):
                yield from self._put_back(request, limit, some)

    def _meant(self, name: str) -> list[tuple[Running, Limit]]:
        found = []
        for request in self._scheduler.running:
            limit: Limit | None = getattr(request, BUDGET, None)
            if limit is not None and is_named(request.request_id, name):
                limit.settle(not has_holes(self._budgets.manager, request.request_id))
                found.append((request, limit))
        if not found:
            raise ClientError(
                409,
                "kv_request_not_running",
                f"restore: no request {name[:200]!r} runs under a budget here; name "
                f"it by the id of its answer or by its X-Request-Id",
            )
        return found

    def _hold(self, limit: Limit, hold_tokens: int | None) -> int:
        """Return how many blocks a request may hold from now on."""
        size, least = self._budgets.block_size, limit.num_first + NUM_OPEN
        if hold_tokens is None:
            return ALL
        if hold_tokens < least * size:
            raise ClientError(
                400,
                "invalid_kv_budget",
                f"restore.hold_tokens: {hold_tokens} (allowed here, in blocks of "
                f"{size}: {least * size} or more)",
            )
        return hold_tokens // size

    def _wanted(self, request: Running, limit: Limit, hold: int) -> Sequence[int]:
        """Return the blocks that are to come back, the newest ones that fit."""
        blocks = self._budgets.kept.of(request.request_id)
        held = num_needed(request, self._budgets.block_size) - limit.num_given
        return blocks[max(0, len(blocks) - max(0, hold - held)) :]

    def _slices(self, blocks: Sequence[int]) -> Iterator[Sequence[int]]:
        count = self._budgets.kept.slice_blocks
        for at in range(0, len(blocks), count):
            yield blocks[at : at + count]

    def _put_back(
        self, request: Running, limit: Limit, blocks: Sequence[int]
    ) -> Iterator[Part]:
        """Put back those whose copies are still there, part by part."""
        budgets, name = self._budgets, request.request_id
        manager, kept = budgets.manager, budgets.kept
        some = [at for at in blocks if kept.has(name, at)]
        if not some or not has_holes(manager, name):
            yield {"changed": 0}  # it has ended, or began anew
            return
        self._check_room(len(some))
        with budgets.filling.begun(name, len(some)) as pages:
            for part in range(kept.parts):
                if part:
                    yield {"changed": 0}
                if not (pages.are_ours and all(kept.has(name, at) for at in some)):
                    yield {"changed": 0}
                    return
                pairs = list(zip(some, pages.numbers, strict=True))
                fault = budgets.ask_worker(PUT_BACK, (name, pairs, part))
                if fault is not None:
                    raise ClientError(500, "kv_failed", f"restore: {fault}")
            for at, page in zip(some, pages.take(), strict=True):
                manager.req_to_blocks[name][at] = page
        kept.remove(name, some)
        limit.num_given -= len(some)
        yield {"changed": len(some)}

    def _check_room(self, count: int) -> None:
        num_free = self._budgets.manager.block_pool.get_num_free_blocks()
        if count > num_free:
            raise ClientError(
                409,
                "kv_no_room",
                f"restore: {count} blocks are to come back, and {num_free} pages are "
                f"free; ask again when requests have ended, or give hold_tokens",
            )
