"""Blocks chosen by attention, on fakes of vLLM's scheduler and model runner."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.test_vllm_plugin_budget import SIZE, FakeScheduler, held, request

from warmroute.adapters.vllm.plugin.attention.choice import ask_masses, least_wanted
from warmroute.adapters.vllm.plugin.attention.option import is_asked_for, option_fault
from warmroute.adapters.vllm.plugin.attention.watch import (
    EVERY_TOKENS,
    KEPT,
    LAST_QUERIES,
    Batch,
    Masses,
    Watch,
)
from warmroute.adapters.vllm.plugin.attention.worker import (
    attention_masses,
    looking_layers,
    watch_attention,
)
from warmroute.adapters.vllm.plugin.block_budget import BlockBudget, read_budget
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.names import (
    ATTENTION_VARIABLE,
    GIVEN_BACK,
    MASSES,
    SCORES,
    WATCHED,
)


class FakeWorkers:
    """Say what blocks receive, or fail."""

    def __init__(self, masses: Mapping[str, Sequence[float]] | None) -> None:
        self.masses = masses
        self.asked: list[tuple[str, tuple[object, ...]]] = []

    def collective_rpc(self, method: str, *, args: tuple[object, ...]) -> list[object]:
        self.asked.append((method, args))
        if method != MASSES:
            return [None]
        if self.masses is None:
            raise RuntimeError("no worker")
        return [self.masses]

    def questions(self) -> list[object]:
        return [args[0] for method, args in self.asked if method == MASSES]


class Scheduler(FakeScheduler):
    """Tells in its output whose first tokens are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, Any] = {}

    def add_request(self, one: Any) -> None:
        self.requests[one.request_id] = one
        super().add_request(one)

    def schedule(self) -> SimpleNamespace:
        new = [
            SimpleNamespace(req_id=one.request_id)
            for one in self.running
            if not one.num_computed_tokens
        ]
        output = super().schedule()
        output.scheduled_new_reqs = new
        return output


def armed(
    scheduler: Scheduler, masses: Mapping[str, Sequence[float]] | None, tokens: int
) -> tuple[Budgets, FakeWorkers]:
    budgets, workers = Budgets(scheduler), FakeWorkers(masses)
    budgets.workers = workers
    budget = BlockBudget("attention", tokens, None, SIZE)
    assert budgets.arm(budget.is_scored) is None
    budgets.default = budget
    return budgets, workers


class TestChoice:
    @given(st.lists(st.integers(0, 3).map(float)), st.data())
    def test_the_blocks_that_receive_least_go_the_oldest_first(
        self, masses: list[float], data: st.DataObject
    ) -> None:
        blocks = data.draw(st.lists(st.integers(0, 9), unique=True).map(sorted))
        count = data.draw(st.integers(0, len(blocks)))
        full = [*masses, *[0.0] * 10]
        naive = sorted((full[at], at) for at in blocks)[:count]
        assert least_wanted(blocks, count, masses) == [at for _, at in naive]

    def test_a_worker_that_fails_is_not_asked_in_vain(self) -> None:
        assert ask_masses(FakeWorkers(None), ["r"]) == {}
        assert ask_masses(None, ["r"]) == {}
        workers = FakeWorkers({})
        ask_masses(workers, [])
        assert workers.asked == []


class TestBudgets:
    def test_what_is_wanted_stays(self) -> None:
        """Of blocks 1 to 5 the three go that receive least; the newest two stay."""
        scheduler = Scheduler()
        _, workers = armed(scheduler, {"r": [9, 0.1, 0.9, 0.3, 0.8, 0.2]}, 5 * SIZE)
        scheduler.add_request(request("r", 7 * SIZE, 99))
        assert getattr(scheduler.schedule(), WATCHED) == ["r"]
        output = scheduler.schedule()
        assert getattr(output, GIVEN_BACK) == {"r": [1, 3, 5]}
        assert held(scheduler, "r") == [0, 2, 4, 6, 7]
        assert not hasattr(output, WATCHED)
        assert [args for method, args in workers.asked if method == SCORES] == [(True,)]

    @pytest.mark.parametrize("masses", [None, {}])
    def test_without_an_answer_the_oldest_go(
        self, masses: dict[str, list[float]] | None
    ) -> None:
        scheduler = Scheduler()
        armed(scheduler, masses, 5 * SIZE)
        scheduler.add_request(request("r", 7 * SIZE, 99))
        scheduler.schedule()
        scheduler.schedule()
        assert held(scheduler, "r") == [0, 4, 5, 6, 7]

    def test_blocks_of_others_stay_until_they_are_left(self) -> None:
        scheduler = Scheduler()
        _, workers = armed(scheduler, {"r": [9.0]}, 3 * SIZE)
        scheduler.add_request(request("r", 7 * SIZE, 99))
        scheduler.schedule()
        shared = scheduler.manager.req_to_blocks["r"][1:5]
        scheduler.pool.touch(shared)
        for _ in range(SIZE):
            scheduler.schedule()
        assert held(scheduler, "r") == [0, 1, 2, 3, 4, 6, 7]
        assert [one.ref_cnt for one in shared] == [2] * 4
        scheduler.pool.free_blocks(shared)
        scheduler.schedule()
        assert held(scheduler, "r") == [0, 7, 8]
        assert workers.questions() == [["r"], ["r"]]  # once a block, not once a step

    def test_those_of_other_methods_are_not_watched(self) -> None:
        scheduler = Scheduler()
        budgets, workers = armed(scheduler, {}, 5 * SIZE)
        budgets.default = BlockBudget("sinks", 5 * SIZE, None, SIZE)
        scheduler.add_request(request("r", 7 * SIZE, 99))
        assert not hasattr(scheduler.schedule(), WATCHED)
        scheduler.schedule()
        assert held(scheduler, "r") == [0, 4, 5, 6, 7]
        assert workers.questions() == []

    def test_a_preempted_one_gives_back_anew(self) -> None:
        scheduler = Scheduler()
        armed(scheduler, {"r": [9, 1, 2, 3, 4, 5]}, 5 * SIZE)
        one = request("r", 7 * SIZE, 99)
        scheduler.add_request(one)
        for _ in range(2):
            scheduler.schedule()
        scheduler.free(one)
        for _ in range(2):
            scheduler.schedule()
        assert held(scheduler, "r") == [0, 4, 5, 6, 7]


def test_it_is_read_like_sinks() -> None:
    budget = read_budget({"method": "attention", "share": 0.5}, SIZE)
    assert budget == BlockBudget("attention", None, 0.5, 4)
    assert budget is not None
    assert budget.is_scored


class Runner:
    """The parts of a model runner that are looked at."""

    def __init__(self, pages: Mapping[str, Sequence[int]], num_prompt: int) -> None:
        table = np.zeros((4, 32), dtype=np.int32)
        for at, row in enumerate(pages.values()):
            table[at, : len(row)] = row
        self.requests = {
            name: SimpleNamespace(num_prompt_tokens=num_prompt) for name in pages
        }
        self.input_batch = SimpleNamespace(
            req_ids=list(pages),
            block_table=[SimpleNamespace(block_table=SimpleNamespace(np=table))],
        )


class Step:
    """A watch that is armed, and steps of its runner."""

    def __init__(self, runner: Runner) -> None:
        self.watch = Watch(runner, SIZE)
        self.update = self.watch.updating(lambda output: "done")
        self.build = self.watch.building(lambda prefix, common: "built")

    def watches(self, *names: str, finished: Sequence[str] = ()) -> None:
        output = SimpleNamespace(finished_req_ids=set(finished))
        setattr(output, WATCHED, list(names))
        assert self.update(output) == "done"

    def begin(self, lengths: Sequence[int], queries: Sequence[int]) -> list[Batch]:
        starts = np.concatenate([[0], np.cumsum(queries)])
        common = SimpleNamespace(
            num_reqs=len(lengths), seq_lens=lengths, query_start_loc=starts
        )
        assert self.build(0, common) == "built"
        return self.watch.batches

    def look(self, *masses: Sequence[float]) -> None:
        self.watch.look(lambda batch: np.array(masses, np.float32))


def ones(batch: Batch) -> Masses:
    return np.ones((len(batch.rows), 4), np.float32)


class TestWatch:
    def test_the_end_of_a_prompt_and_few_tokens_are_looked_at(self) -> None:
        length = LAST_QUERIES + 3
        count = -(-length // SIZE)
        step = Step(Runner({"by": [50], "r": range(1, count + 1)}, length))
        step.watches("r")
        assert step.begin([3, length - 1], [3, 20]) == []  # the prompt goes on
        (batch,) = step.begin([3, length], [3, length])
        (row,) = batch.rows
        assert (row.first, row.end) == (3 + 3, 3 + length)
        assert row.pages.tolist() == list(range(1, count + 1))
        step.begin([3, length], [3, 20])
        looked = [bool(step.begin([3, length + at], [1, 1])) for at in range(1, 9)]
        assert looked == [(length + at) % EVERY_TOKENS == 0 for at in range(1, 9)]

    def test_looks_are_averaged_over_layers_and_fade(self) -> None:
        step = Step(Runner({"r": [7, 8, 9]}, 9))
        step.watches("r")
        step.begin([9], [9])
        step.look([0.5, 0.3, 0.2])
        step.look([0.1, 0.3, 0.6])
        assert step.watch.masses(["r", "x"])["r"] == pytest.approx([0.3, 0.3, 0.4])
        step.begin([12], [1])
        step.look([1, 0, 0])
        kept = [0.3 * KEPT + 1 - KEPT, 0.3 * KEPT, 0.4 * KEPT]
        assert step.watch.masses(["r"])["r"] == pytest.approx(kept)

    def test_holes_are_skipped_and_places_kept(self) -> None:
        runner = Runner({"r": [7, 0, 0, 9, 4]}, 9)
        step = Step(runner)
        step.watches("r")
        (batch,) = step.begin([20], [1])
        (row,) = batch.rows
        assert (row.places.tolist(), row.pages.tolist()) == ([0, 3, 4], [7, 9, 4])
        assert row.length == 20 - 2 * SIZE
        step.look([0.2, 0.7, 0.1])
        assert step.watch.masses(["r"])["r"] == pytest.approx([0.2, 0, 0, 0.7, 0.1])

    def test_decoded_rows_are_looked_at_together(self) -> None:
        step = Step(Runner({"a": [7], "b": [8], "c": [9]}, 2))
        step.watches("a", "b", "c")
        batches = step.begin([4, 2, 4], [1, 2, 1])
        assert [[row.name for row in batch.rows] for batch in batches] == [
            ["b"],
            ["a", "c"],
        ]

    def test_requests_that_end_leave_nothing(self) -> None:
        step = Step(Runner({"r": [7, 8, 9]}, 9))
        step.watches("r")
        step.begin([9], [9])
        step.watch.look(ones)
        step.watches(finished=["r"])
        assert repr(step.watch) == "<Watch [Requests: 0]>"
        assert step.watch.masses(["r"]) == {}
        assert step.begin([9], [9]) == []

    def test_what_fails_ends_the_watching_only(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        step = Step(Runner({"r": [7, 8, 9]}, 9))
        step.watches("r")
        step.begin([9], [9])
        step.watch.look(lambda batch: batch.missing)  # type: ignore[attr-defined]
        step.watch.look(ones)
        step.watches("r")
        assert step.begin([9], [9]) == []
        assert caplog.text.count("no longer looked at") == 1


def test_layers_that_look_are_spread_over_the_model() -> None:
    names = [f"layer {at}" for at in range(8)]
    assert looking_layers(names) == ["layer 2", "layer 6"]
    assert looking_layers(names[:1]) == ["layer 0"]


def test_it_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ATTENTION_VARIABLE, raising=False)
    assert not is_asked_for()
    assert f"{ATTENTION_VARIABLE}=1" in str(option_fault())
    worker = SimpleNamespace(model_runner=SimpleNamespace())
    assert str(watch_attention(worker, True)).startswith("unsupported: attention is")
    assert attention_masses(worker, ["r"]) == {}
    monkeypatch.setenv(ATTENTION_VARIABLE, "1")
    told = watch_attention(worker, True)  # there is no vLLM beside these tests
    assert str(told).startswith("unsupported: a look at attention failed")
