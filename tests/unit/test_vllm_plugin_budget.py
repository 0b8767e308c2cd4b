"""Budgets of running sequences, on fakes of vLLM's pool, scheduler and runner."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.fake_vllm_pool import FakeBlock, FakePool

from warmroute.adapters.vllm.plugin.block_budget import BlockBudget, read_budget
from warmroute.adapters.vllm.plugin.budget_faults import budgets_fault
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.holes import Holes, close_up, open_holes
from warmroute.adapters.vllm.plugin.limits import NEVER
from warmroute.adapters.vllm.plugin.names import GIVEN_BACK
from warmroute.policies.errors import ClientError

SIZE = 4


class FakeWorkers:
    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault
        self.asked: list[tuple[object, ...]] = []

    def collective_rpc(self, method: str, *, args: tuple[object, ...]) -> list[object]:
        self.asked.append(args)
        if self.fault == "raise":
            raise RuntimeError(method)
        return [self.fault]


class FakeScheduler:
    """Runs every request it is given, a token a step, from the pool of a fake."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.pool = FakePool(num_blocks, SIZE)
        self.pool.null_block = self.pool.blocks[0]  # type: ignore[attr-defined]
        self.manager = SimpleNamespace(
            block_size=SIZE,
            block_pool=self.pool,
            req_to_blocks={},
            num_cached_block={},
        )
        coordinator = SimpleNamespace(single_type_managers=[self.manager])
        self.kv_cache_manager = SimpleNamespace(coordinator=coordinator)
        self.running: list[Any] = []

    def add_request(self, request: Any) -> None:
        self.running.append(request)

    def schedule(self) -> SimpleNamespace:
        for request in self.running:
            chunk = 1
            if request.num_computed_tokens < request.num_prompt_tokens:
                chunk = min(
                    request.chunk,
                    request.num_prompt_tokens - request.num_computed_tokens,
                )
            request.num_computed_tokens += chunk
            blocks = self.manager.req_to_blocks.setdefault(request.request_id, [])
            while len(blocks) * SIZE < request.num_computed_tokens:
                page = self.pool.free_block_queue.popleft()
                page.ref_cnt = 1
                blocks.append(page)
            if request.num_computed_tokens >= request.num_prompt_tokens:
                request.num_tokens_with_spec = request.num_computed_tokens + 1
        return SimpleNamespace()

    def free(self, request: Any) -> None:
        """Do what both an end and a preemption do."""
        blocks = self.manager.req_to_blocks.pop(request.request_id)
        self.manager.num_cached_block.pop(request.request_id, None)
        self.pool.free_blocks(one for one in reversed(blocks) if one.block_id)
        request.num_computed_tokens = 0


def request(name: str, prompt: int, chunk: int = 5, **fields: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=prompt,
        num_tokens_with_spec=prompt,
        num_computed_tokens=0,
        chunk=chunk,
        sampling_params=object(),
        resumable=False,
        **fields,
    )


def armed(scheduler: FakeScheduler, budget: BlockBudget | None) -> Budgets:
    budgets = Budgets(scheduler)
    budgets.workers = FakeWorkers()
    assert budgets.arm() is None
    budgets.default = budget
    return budgets


def held(scheduler: FakeScheduler, name: str) -> list[int]:
    blocks = scheduler.manager.req_to_blocks[name]
    return [at for at, block in enumerate(blocks) if block.block_id]


class TestBudgets:
    @given(
        prompts=st.lists(
            st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=3
        ),
        num_first=st.integers(0, 2),
        more=st.integers(2, 5),
        steps=st.integers(1, 40),
        preempted_at=st.integers(0, 40),
    )
    def test_hold_the_first_and_the_newest(
        self,
        prompts: list[tuple[int, int]],
        num_first: int,
        more: int,
        steps: int,
        preempted_at: int,
    ) -> None:
        scheduler = FakeScheduler()
        tokens = (num_first + more) * SIZE
        armed(scheduler, BlockBudget("sinks", tokens, None, num_first * SIZE))
        ones = [request(f"{n}", *shape) for n, shape in enumerate(prompts)]
        for one in ones:
            scheduler.add_request(one)
        for step in range(steps):
            decoded = [one.num_computed_tokens >= one.num_prompt_tokens for one in ones]
            scheduler.schedule()
            for one, is_decoded in zip(ones, decoded, strict=True):
                count = -(-one.num_computed_tokens // SIZE)
                naive = list(range(count))
                if is_decoded and count > num_first + more:
                    naive[num_first : count - more] = []
                assert held(scheduler, one.request_id) == naive
            scheduler.pool.check()
            if step == preempted_at:
                scheduler.free(ones[-1])
        for one in ones:
            if one.request_id in scheduler.manager.req_to_blocks:
                scheduler.free(one)
        assert scheduler.pool.get_num_free_blocks() == 63

    def test_a_block_of_others_loses_one_reference_only(self) -> None:
        scheduler = FakeScheduler()
        budgets = armed(scheduler, BlockBudget("window", 2 * SIZE))
        scheduler.add_request(request("r", 5 * SIZE, 99))
        scheduler.schedule()
        shared: FakeBlock = scheduler.manager.req_to_blocks["r"][1]
        scheduler.pool.touch([shared])
        free = scheduler.pool.get_num_free_blocks()
        output = scheduler.schedule()
        assert getattr(output, GIVEN_BACK) == {"r": [0, 1, 2, 3]}
        # Four left, one of which another holds, and the new token took one.
        assert scheduler.pool.get_num_free_blocks() == free + 3 - 1
        assert (shared.ref_cnt, budgets.num_given) == (1, 4)
        assert scheduler.manager.num_cached_block == {"r": NEVER}

    def test_those_that_run_keep_theirs(self) -> None:
        scheduler = FakeScheduler()
        budgets = armed(scheduler, None)
        scheduler.add_request(request("without", 40, 99))
        budgets.default = BlockBudget("window", None, 0.5)
        scheduler.add_request(request("with", 40, 99))
        budgets.default = None
        for _ in range(3):
            scheduler.schedule()
        assert len(held(scheduler, "without")) == 11
        assert len(held(scheduler, "with")) == 5

    @pytest.mark.parametrize("fields", [{"sampling_params": None}, {"resumable": True}])
    def test_sessions_and_poolings_have_none(self, fields: dict[str, Any]) -> None:
        scheduler = FakeScheduler()
        armed(scheduler, BlockBudget("window", 2 * SIZE))
        one = request("r", 40, 99)
        vars(one).update(fields)
        scheduler.add_request(one)
        assert not [name for name in vars(one) if "warmroute" in name]

    def test_nothing_is_changed_until_one_is_asked_for(self) -> None:
        scheduler = FakeScheduler()
        budgets = Budgets(scheduler)
        budgets.workers = workers = FakeWorkers()
        assert budgets.fault() is None
        assert not {"add_request", "schedule"} & set(vars(scheduler))
        assert budgets.arm() is budgets.arm() is None
        assert workers.asked == [(False,), (True,)]  # armed once

    @pytest.mark.parametrize("fault", ["unsupported: no", "raise"])
    def test_a_worker_that_cannot_leaves_the_scheduler_alone(self, fault: str) -> None:
        scheduler = FakeScheduler()
        budgets = Budgets(scheduler)
        assert budgets.arm() == "unsupported: the engine is not known yet"
        budgets.workers = FakeWorkers(fault)
        assert str(budgets.arm()).startswith("unsupported: ")
        assert "schedule" not in vars(scheduler)


def engine(**changes: Any) -> Any:
    parallel = SimpleNamespace(world_size=1, decode_context_parallel_size=1)
    spec = type("FullAttentionSpec", (), {})()
    spec.sliding_window = changes.pop("sliding_window", None)
    spec.attention_chunk_size = None
    kind = changes.pop("manager", "FullAttentionManager")
    manager = type(kind, (), {"kv_cache_spec": spec})()
    parallel.world_size = changes.pop("world_size", 1)
    return SimpleNamespace(
        connector=changes.pop("connector", None),
        vllm_config=SimpleNamespace(
            parallel_config=parallel,
            speculative_config=changes.pop("speculative_config", None),
            scheduler_config=SimpleNamespace(
                async_scheduling=changes.pop("async_scheduling", False)
            ),
        ),
        kv_cache_manager=SimpleNamespace(
            coordinator=SimpleNamespace(single_type_managers=[manager])
        ),
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"connector": object()}, "KV connector"),
        ({"speculative_config": object()}, "speculative"),
        ({"async_scheduling": True}, "--no-async-scheduling"),
        ({"world_size": 2}, "2 workers"),
        ({"sliding_window": 128}, "window"),
        ({"manager": "MambaManager"}, "MambaManager"),
    ],
)
def test_engines_without_budgets_say_why(
    changes: dict[str, Any], told: str | None
) -> None:
    fault = budgets_fault(engine(**changes))
    assert (fault is None) == (told is None)
    assert (told or "") in (fault or "")


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"method": "full"}, None),
        ({"method": "sinks", "tokens": 12}, BlockBudget("sinks", 12, None, 4)),
        ({"method": "sinks", "share": 0.1}, BlockBudget("sinks", None, 0.1, 4)),
        ({"method": "window", "tokens": 8}, BlockBudget("window", 8, None, 0)),
        (
            {"method": "window", "tokens": 8, "host_bytes": 9},
            BlockBudget("window", 8, None, 0, 9),
        ),
    ],
)
def test_a_budget_is_read(fields: dict[str, Any], budget: BlockBudget | None) -> None:
    assert read_budget(fields, SIZE) == budget


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"method": "sinks", "tokens": 11}, "12 or more"),
        ({"method": "sinks", "tokens": 12, "share": 0.5}, "both are"),
        ({"method": "window"}, "neither is"),
        ({"method": "window", "tokens": 12, "recent": 4}, "budget.recent: 4"),
        ({"method": "full", "tokens": 12}, "allowed: nothing"),
        ({"method": "h2o", "tokens": 12}, "attention"),
        ({"method": "infinigen", "tokens": 12}, "'restore' can"),
        ({"method": "full", "host_bytes": 12}, "budget.host_bytes: 12"),
        ({"method": "windou", "tokens": 12}, "did you mean"),
    ],
)
def test_a_budget_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ClientError) as refusal:
        read_budget(fields, SIZE)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_kv_budget")
    assert told in refusal.value.message


def test_a_share_never_goes_below_what_is_always_held() -> None:
    budget = BlockBudget("sinks", None, 0.25, 5)
    assert [budget.num_held(tokens, SIZE) for tokens in (1, 64, 100)] == [4, 4, 6]


@given(st.lists(st.booleans(), max_size=12), st.integers(1, SIZE), st.integers(0, 3))
def test_closing_up_keeps_what_was_there(
    is_there: list[bool], last: int, padding: int
) -> None:
    numbers = [at * there for at, there in enumerate([*is_there, True], 1)]
    row = np.array([*numbers, *[99] * padding])
    length = len(is_there) * SIZE + last
    kept = [number for number in numbers if number]
    assert close_up(row, length, SIZE) == (len(kept) - 1) * SIZE + last
    holes = [0] * (len(numbers) - len(kept))
    assert row.tolist() == [*kept, *holes, *[99] * padding]


class Tensor(np.ndarray[Any, Any]):
    """An array that is copied as a tensor is."""

    def clone(self) -> Any:
        return self.copy()


@dataclasses.dataclass
class Common:
    num_reqs: int
    block_table_tensor: Any
    seq_lens: Any
    max_seq_len: int = 99


class Runner:
    """The parts of a model runner that holes are in."""

    def __init__(self, rows: dict[str, list[int]]) -> None:
        table = np.zeros((4, 8), dtype=np.int32)
        for at, blocks in enumerate(rows.values()):
            table[at, : len(blocks)] = blocks
        names = list(rows)
        self.requests = {
            name: SimpleNamespace(block_ids=(list(blocks),))
            for name, blocks in rows.items()
        }
        self.input_batch = SimpleNamespace(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            block_table=[SimpleNamespace(block_table=SimpleNamespace(np=table))],
        )
        self.table = table

    def common(self, lengths: Sequence[int]) -> Common:
        table = self.table[: len(lengths)].copy().view(Tensor)
        return Common(len(lengths), table, np.array(lengths).view(Tensor))


def output(
    given_back: dict[str, list[int]] | None = None,
    finished: set[str] = frozenset(),  # type: ignore[assignment]
    resumed: set[str] = frozenset(),  # type: ignore[assignment]
) -> Any:
    told = SimpleNamespace(
        finished_req_ids=finished,
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=resumed),
    )
    if given_back:
        setattr(told, GIVEN_BACK, given_back)
    return told


class TestHoles:
    def test_rows_with_holes_are_closed_up_and_others_left(self) -> None:
        runner = Runner({"a": [1, 2, 3], "b": [4, 5, 6, 7]})
        holes = Holes(runner, SIZE)
        update, seen = holes.updating(lambda _: "done"), []
        build = holes.building(lambda prefix, common: seen.append(common))
        whole = runner.common([10, 15])
        assert update(output()) == "done"
        build(0, whole)
        assert seen.pop() is whole  # nobody has holes: nothing is copied
        update(output({"b": [1, 2], "gone": [0]}))
        assert runner.requests["b"].block_ids == ([4, 0, 0, 7],)
        before = runner.common([10, 15])
        build(0, before)
        (after,) = seen
        assert after.block_table_tensor[:, :4].tolist() == [[1, 2, 3, 0], [4, 7, 0, 0]]
        assert (after.seq_lens.tolist(), after.max_seq_len) == ([10, 7], 10)
        assert before.seq_lens.tolist() == [10, 15]

    @pytest.mark.parametrize("ending", ["finished", "resumed"])
    def test_requests_that_end_or_begin_anew_are_forgotten(self, ending: str) -> None:
        runner = Runner({"a": [1, 2, 3]})
        holes = Holes(runner, SIZE)
        update = holes.updating(lambda _: None)
        update(output({"a": [0]}))
        assert repr(holes) == "<Holes [Requests: 1]>"
        update(output(**{ending: {"a"}}))
        assert repr(holes) == "<Holes [Requests: 0]>"
        runner.requests["a"].block_ids = ([7, 8, 9],)
        update(output({"a": [0]}, resumed={"a"}))  # given back before it was put back
        assert runner.requests["a"].block_ids == ([7, 8, 9],)

    def test_a_worker_that_is_not_understood_is_left_alone(self) -> None:
        told = open_holes(SimpleNamespace(model_runner=Runner({})), True)
        assert str(told).startswith("unsupported: a look at the worker failed")
