"""Blocks that running sequences get back, on fakes of vLLM's pool and runner.

The plugin's two sides are the real ones: the scheduler's account, and the worker's
copies and holes. What a page holds is a number that names request and block.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.test_vllm_plugin_budget import SIZE, FakeScheduler, held, request

from warmroute.adapters.vllm.plugin import slices
from warmroute.adapters.vllm.plugin.block_budget import BlockBudget
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.copies import Copies, open_copies, put_back
from warmroute.adapters.vllm.plugin.holes import Holes
from warmroute.adapters.vllm.plugin.names import (
    COPIES,
    HOLES,
    OPEN_COPIES,
    OPEN_HOLES,
    PUT_BACK,
)
from warmroute.adapters.vllm.plugin.request_names import is_named
from warmroute.adapters.vllm.plugin.returning import Returning
from warmroute.policies.errors import ClientError

BLOCK_BYTES = 16
MUCH = 1 << 30


class Pages(np.ndarray[Any, Any]):
    """An array that is copied as a tensor is."""

    device = SimpleNamespace(type="cpu")

    def clone(self) -> Any:
        return self.copy()

    def copy_(self, other: Any) -> None:
        self[...] = other

    def data_ptr(self) -> int:
        return int(self.ctypes.data)


class FakeRunner:
    """Keeps tables as it is told; clears pages that are new before it goes on."""

    def __init__(self, num_blocks: int, scheduler: FakeScheduler) -> None:
        self.kv_caches = [
            np.zeros((num_blocks, 1), np.int64).view(Pages) for _ in range(2)
        ]
        self.kv_cache_config = SimpleNamespace(num_blocks=num_blocks)
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(
            req_id_to_index={},
            block_table=[
                SimpleNamespace(
                    block_table=SimpleNamespace(np=np.zeros((8, 64), dtype=np.int32))
                )
            ],
        )
        self._scheduler = scheduler
        holes = Holes(self, SIZE)
        setattr(self, OPEN_HOLES, holes)
        self._update_states = holes.updating(self._update)

    def step(self, output: Any) -> None:
        self._update_states(output)

    def _update(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self.requests.pop(name, None)
        rows = self.input_batch.req_id_to_index
        rows.clear()
        table = self.input_batch.block_table[0].block_table.np
        for row, one in enumerate(self._scheduler.running):
            name = one.request_id
            if name in output.scheduled_cached_reqs.resumed_req_ids:
                del self.requests[name]
            if name not in self.requests:
                self.requests[name] = SimpleNamespace(block_ids=([],))
            known = self.requests[name].block_ids[0]
            blocks = self._scheduler.manager.req_to_blocks[name]
            for page in blocks[len(known) :]:
                known.append(page.block_id)
                for cache in self.kv_caches:
                    cache[page.block_id] = 0
            rows[name] = row
            table[row, : len(known)] = known


class Machine:
    """A scheduler and a worker with the plugin in both."""

    def __init__(self, budget: BlockBudget, num_blocks: int = 64) -> None:
        self.scheduler = FakeScheduler(num_blocks)
        self.runner = FakeRunner(num_blocks, self.scheduler)
        self.budgets = Budgets(self.scheduler)
        self.budgets.workers = self
        assert self.budgets.arm() is None
        if budget.host_bytes is not None:
            assert self.budgets.keep(budget.host_bytes) is None
        self.budgets.default = budget
        self.returning = Returning(self.scheduler, self.budgets)
        self._finished: set[str] = set()
        self._anew: set[str] = set()
        self.fault: str | None = None

    def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[object]:
        worker = SimpleNamespace(model_runner=self.runner)
        if method == PUT_BACK:
            return [self.fault or put_back(worker, *args)]
        return [{HOLES: None, COPIES: open_copies(worker)}[method]]

    def add(self, name: str, num_prompt: int) -> Any:
        one = request(name, num_prompt, 99)
        self.scheduler.add_request(one)
        return one

    def step(self) -> None:
        output: Any = self.scheduler.schedule()
        output.finished_req_ids, self._finished = self._finished, set()
        output.scheduled_cached_reqs = SimpleNamespace(resumed_req_ids=self._anew)
        self._anew = set()
        self.runner.step(output)
        for name, at, page in self.pages():
            if not self.runner.kv_caches[0][page]:
                for cache in self.runner.kv_caches:
                    cache[page] = stamp(name, at)

    def end(self, one: Any) -> None:
        self.scheduler.free(one)
        self.scheduler.running.remove(one)
        self._finished.add(one.request_id)

    def preempt(self, one: Any) -> None:
        self.scheduler.free(one)
        self._anew.add(one.request_id)

    def restore(self, name: str, hold_tokens: int | None = None) -> tuple[int, int]:
        parts = list(self.returning.bring_back(name, hold_tokens))
        changed = sum(int(str(part.get("changed", 0))) for part in parts)
        return changed, int(str(parts[0]["named"]))

    def pages(self) -> Iterator[tuple[str, int, int]]:
        for one in self.scheduler.running:
            name = one.request_id
            blocks = self.scheduler.manager.req_to_blocks.get(name, [])
            yield from (
                (name, at, page.block_id)
                for at, page in enumerate(blocks)
                if page.block_id
            )

    @property
    def num_copies(self) -> int:
        copies: Copies = getattr(self.runner, OPEN_COPIES)
        return sum(map(len, copies._copies.values()))

    def check(self) -> None:
        self.scheduler.pool.check()
        for cache in self.runner.kv_caches:
            for name, at, page in self.pages():
                assert cache[page] == stamp(name, at), (name, at)
        assert self.num_copies * BLOCK_BYTES == self.budgets.kept.num_bytes
        for name, state in self.runner.requests.items():
            blocks = self.scheduler.manager.req_to_blocks.get(name)
            if blocks is not None and name not in self._anew:
                assert state.block_ids[0] == [one.block_id for one in blocks]
                row = self.runner.input_batch.req_id_to_index[name]
                table = self.runner.input_batch.block_table[0].block_table.np
                assert table[row, : len(blocks)].tolist() == state.block_ids[0]


def stamp(name: str, at: int) -> int:
    return 1 + int(name) * 1_000 + at


def num_layers(copies: Copies) -> int:
    """Count what is copied, a layer of a block each."""
    blocks = (block for held in copies._copies.values() for block in held.values())
    return sum(layer is not None for block in blocks for layer in block)


@contextmanager
def slices_of(blocks: float) -> Iterator[None]:
    """Slices of so many blocks; with a half, a block is copied in two parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_BYTES", int(blocks * BLOCK_BYTES))
        yield


def budget(tokens: int, host_bytes: int | None = MUCH) -> BlockBudget:
    return BlockBudget("window", tokens, None, 0, host_bytes)


STEP, RESTORE, BEGIN, GO_ON, PREEMPT, END = range(6)


class TestReturning:
    @given(
        st.lists(st.integers(1, 50), min_size=1, max_size=3),
        st.lists(
            st.tuples(
                st.sampled_from(
                    [STEP, STEP, STEP, RESTORE, BEGIN, GO_ON, GO_ON, PREEMPT, END]
                ),
                st.integers(0, 2),
                st.sampled_from([None, 2 * SIZE, 4 * SIZE, 7 * SIZE]),
            ),
            max_size=40,
        ),
        st.sampled_from([0.5, 1, 2, 4]),
        st.sampled_from([MUCH, 3 * BLOCK_BYTES]),
    )
    def test_every_block_that_a_request_has_is_its_own(
        self,
        prompts: Sequence[int],
        acts: Sequence[tuple[int, int, int | None]],
        slice_blocks: float,
        cap_bytes: int,
    ) -> None:
        """Whatever is done in whatever order, and all is free again in the end.

        Calls that were begun are left where they are, as by callers that go away.
        """
        with slices_of(slice_blocks):
            machine = Machine(budget(3 * SIZE, cap_bytes))
            ones = [machine.add(f"{n}", tokens) for n, tokens in enumerate(prompts)]
            machine.step()
            begun: list[Iterator[object]] = []
            for act, number, hold_tokens in acts:
                one = ones[number % len(ones)]
                if act == STEP:
                    machine.step()
                elif act == GO_ON and begun:
                    job = begun[number % len(begun)]
                    next(job, None)
                elif one in machine.scheduler.running:
                    if act == RESTORE:
                        changed, named = machine.restore(one.request_id, hold_tokens)
                        assert changed <= named
                    elif act == BEGIN:
                        job = machine.returning.bring_back(one.request_id, hold_tokens)
                        assert next(job)
                        begun.append(job)
                    elif act == PREEMPT and one.num_computed_tokens:
                        machine.preempt(one)
                    elif act == END and one.num_computed_tokens:
                        machine.end(one)
                machine.check()
                assert machine.budgets.kept.num_bytes <= cap_bytes
            machine.step()
            for one in list(machine.scheduler.running):
                machine.end(one)
            machine.step()
            assert machine.num_copies == machine.budgets.kept.num_bytes == 0
            assert machine.scheduler.pool.get_num_free_blocks() == 63

    def test_all_that_was_given_back_returns_and_stays(self) -> None:
        machine = Machine(budget(3 * SIZE))
        one = machine.add("1", 40)
        machine.step()
        machine.step()
        assert held(machine.scheduler, "1") == [8, 9, 10]
        assert machine.restore("1") == (8, 8)
        assert held(machine.scheduler, "1") == list(range(11))
        for _ in range(3 * SIZE):
            machine.step()
            machine.check()
        assert len(held(machine.scheduler, "1")) == 14
        assert machine.restore("1") == (0, 0)
        machine.preempt(one)
        machine.step()
        machine.step()
        assert len(held(machine.scheduler, "1")) == 11

    def test_without_copies_nothing_returns(self) -> None:
        machine = Machine(budget(3 * SIZE, None))
        machine.add("1", 40)
        machine.step()
        machine.step()
        assert machine.restore("1") == (0, 8)

    def test_of_too_much_the_newest_returns(self) -> None:
        machine = Machine(budget(3 * SIZE))
        machine.add("1", 40)
        machine.step()
        machine.step()
        assert machine.restore("1", 5 * SIZE) == (2, 8)
        assert held(machine.scheduler, "1") == [6, 7, 8, 9, 10]
        for _ in range(SIZE):
            machine.step()
        assert held(machine.scheduler, "1") == [7, 8, 9, 10, 11]
        machine.check()

    def test_what_was_in_slices_is_whole_behind_each(self) -> None:
        """A caller that goes away leaves what came back so far."""
        with slices_of(3):
            machine = Machine(budget(3 * SIZE))
            machine.add("1", 40)
            machine.step()
            for left in (8, 5, 3):
                machine.step()
                assert len(held(machine.scheduler, "1")) == left
            parts = machine.returning.bring_back("1", None)
            assert [next(parts), next(parts)] == [{"named": 8}, {"changed": 3}]
            machine.check()
            machine.step()
            machine.check()
            assert held(machine.scheduler, "1") == [0, 1, 2, 8, 9, 10]
            parts.close()
            assert machine.restore("1") == (5, 5)
            machine.check()

    def test_a_large_block_is_copied_in_parts_and_goes_behind_the_last(self) -> None:
        """A step copies no more than a slice, and what is not copied yet stays."""
        with slices_of(0.5):
            machine = Machine(budget(3 * SIZE))
            machine.add("1", 24)
            machine.step()
            copies: Copies = getattr(machine.runner, OPEN_COPIES)
            for step in range(1, 9):
                machine.step()
                assert num_layers(copies) == step
                assert machine.budgets.num_given == step // 2
                machine.check()

    def test_a_block_that_was_begun_goes_whatever_would_be_chosen_now(self) -> None:
        with slices_of(0.5):
            machine = Machine(budget(3 * SIZE))
            machine.add("1", 24)
            machine.step()
            machine.step()
            machine.budgets._choose = lambda blocks, count: blocks[-count:]
            machine.step()
            assert held(machine.scheduler, "1") == [1, 2, 3, 4, 5, 6]
            machine.step()
            machine.step()
            assert held(machine.scheduler, "1") == [1, 2, 3, 5, 6]
            machine.check()

    def test_a_large_block_returns_in_parts_and_is_seen_behind_the_last(self) -> None:
        with slices_of(0.5):
            machine = Machine(budget(3 * SIZE))
            machine.add("1", 24)
            for _ in range(5):
                machine.step()
            gone = [at for at in range(7) if at not in held(machine.scheduler, "1")]
            parts = machine.returning.bring_back("1", None)
            assert [next(parts), next(parts)] == [{"named": 2}, {"changed": 0}]
            machine.step()
            machine.check()
            assert not set(gone) & set(held(machine.scheduler, "1"))
            assert list(parts) == [{"changed": 1}, {"changed": 0}, {"changed": 1}]
            assert set(gone) <= set(held(machine.scheduler, "1"))
            machine.check()

    @pytest.mark.parametrize("ending", ["end", "preempt", "close", "restore"])
    def test_a_page_that_was_filled_in_part_is_free_again(self, ending: str) -> None:
        """Whoever ends it: the request, the caller, or another caller."""
        with slices_of(0.5):
            machine = Machine(budget(3 * SIZE))
            one = machine.add("1", 24)
            for _ in range(5):
                machine.step()
            parts = machine.returning.bring_back("1", None)
            assert [next(parts), next(parts)] == [{"named": 2}, {"changed": 0}]
            if ending == "close":
                parts.close()
            elif ending == "restore":
                assert machine.restore("1") == (2, 2)
                assert list(parts) == [{"changed": 0}, {"changed": 0}]
            else:
                getattr(machine, ending)(one)
                machine.step()
            used = {page for _, _, page in machine.pages()}
            assert machine.scheduler.pool.get_num_free_blocks() == 63 - len(used)
            assert not [part for part in parts if part["changed"]]
            machine.check()

    @pytest.mark.parametrize("ending", ["end", "preempt"])
    def test_a_copy_that_was_begun_goes_with_its_request(self, ending: str) -> None:
        with slices_of(0.5):
            machine = Machine(budget(3 * SIZE))
            one = machine.add("1", 24)
            machine.step()
            machine.step()
            assert (machine.num_copies, len(held(machine.scheduler, "1"))) == (1, 7)
            getattr(machine, ending)(one)
            machine.step()
            assert machine.num_copies == machine.budgets.kept.num_bytes == 0

    @pytest.mark.parametrize("ending", ["end", "preempt"])
    def test_a_request_that_is_over_between_slices_gets_no_more(
        self, ending: str
    ) -> None:
        with slices_of(3):
            machine = Machine(budget(3 * SIZE))
            one = machine.add("1", 40)
            for _ in range(4):
                machine.step()
            parts = machine.returning.bring_back("1", None)
            assert [next(parts), next(parts)] == [{"named": 8}, {"changed": 3}]
            getattr(machine, ending)(one)
            assert list(parts) == [{"changed": 0}, {"changed": 0}]
            machine.step()
            assert machine.num_copies == 0
            machine.check()

    def test_without_room_it_is_refused_and_nothing_changed(self) -> None:
        machine = Machine(budget(3 * SIZE), num_blocks=12)
        machine.add("1", 40)
        machine.step()
        machine.step()
        machine.scheduler.pool.get_new_blocks(2)
        with pytest.raises(ClientError, match=r"8 blocks .* 6 pages are free") as told:
            machine.restore("1")
        assert (told.value.status, told.value.code) == (409, "kv_no_room")
        for _ in range(SIZE):
            machine.step()
        assert len(held(machine.scheduler, "1")) == 3  # its budget is what it was
        machine.check()

    def test_a_worker_that_fails_gets_no_pages(self) -> None:
        machine = Machine(budget(3 * SIZE))
        machine.add("1", 40)
        machine.step()
        machine.step()
        machine.fault = "no"
        with pytest.raises(ClientError, match="restore: no"):
            machine.restore("1")
        assert machine.scheduler.pool.get_num_free_blocks() == 60
        machine.fault = None
        assert machine.restore("1") == (8, 8)
        machine.check()

    def test_blocks_of_others_return_as_pages_of_its_own(self) -> None:
        machine = Machine(budget(2 * SIZE))
        machine.add("1", 20)
        machine.step()
        shared = machine.scheduler.manager.req_to_blocks["1"][1]
        machine.scheduler.pool.touch([shared])
        machine.step()
        assert machine.restore("1") == (4, 4)
        assert machine.scheduler.manager.req_to_blocks["1"][1] is not shared
        assert shared.ref_cnt == 1
        machine.check()

    @pytest.mark.parametrize(
        ("name", "hold_tokens", "status"), [("2", None, 409), ("1", SIZE, 400)]
    )
    def test_what_cannot_be_is_refused(
        self, name: str, hold_tokens: int | None, status: int
    ) -> None:
        machine = Machine(budget(3 * SIZE))
        machine.add("1", 40)
        machine.step()
        with pytest.raises(ClientError) as told:
            machine.restore(name, hold_tokens)
        assert told.value.status == status


class TestWorker:
    def test_copies_are_made_before_their_pages_are_used_again(self) -> None:
        """The fake clears new pages, as vLLM may, when it begins with a step."""
        machine = Machine(budget(2 * SIZE), num_blocks=14)
        machine.add("1", 40)
        machine.step()
        machine.add("2", 40)
        machine.step()
        assert {page for name, _, page in machine.pages() if name == "2"} >= {1, 2, 3}
        machine.end(machine.scheduler.running[1])
        assert machine.restore("1") == (9, 9)
        machine.check()

    def test_pages_that_are_not_understood_are_not_copied(self) -> None:
        runner = SimpleNamespace(
            kv_caches=[np.zeros((3, 1)).view(Pages)],
            kv_cache_config=SimpleNamespace(num_blocks=4),
        )
        told = open_copies(SimpleNamespace(model_runner=runner))
        assert str(told).startswith("unsupported: pages are kept")
        assert str(open_copies(SimpleNamespace())).startswith("unsupported: a look")

    def test_a_copy_that_fails_costs_its_return_and_nothing_else(self) -> None:
        machine = Machine(budget(3 * SIZE))
        machine.add("1", 40)
        machine.step()
        copies: Copies = getattr(machine.runner, OPEN_COPIES)
        copies._caches = [None, None]  # type: ignore[list-item]
        machine.step()
        assert held(machine.scheduler, "1") == [8, 9, 10]
        with pytest.raises(ClientError, match="restore: KeyError") as told:
            machine.restore("1")
        assert told.value.status == 500


class TestNames:
    @pytest.mark.parametrize(
        ("inside", "name"),
        [
            ("cmpl-abc-0-0a1b2c3d", "cmpl-abc"),
            ("cmpl-abc-0-0a1b2c3d", "abc"),
            ("cmpl-abc-0-0a1b2c3d", "cmpl-abc-0-0a1b2c3d"),
            ("3_cmpl-abc-1-0a1b2c3d", "abc"),
            ("chatcmpl-abc-0a1b2c3d", "abc"),
            ("chatcmpl-abc-0a1b2c3d", "chatcmpl-abc"),
            ("2_chatcmpl-abc-0a1b2c3d", "chatcmpl-abc"),
            ("plain", "plain"),
        ],
    )
    def test_a_client_knows_them(self, inside: str, name: str) -> None:
        assert is_named(inside, name)

    @pytest.mark.parametrize("name", ["ab", "abc-1", "0a1b2c3d", "cmpl-abc", "c", ""])
    def test_others_are_not_meant(self, name: str) -> None:
        assert not is_named("chatcmpl-abc-0a1b2c3d", name)
