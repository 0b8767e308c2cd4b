"""Steps that several processes compute together."""

import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController

from tests.unit.model_rig import (
    CONFIG,
    NaiveLlama,
    Part,
    draw_ids,
    halved_tensors,
    make_batch,
    make_model,
    make_store,
    one_run,
    scattered_table,
)
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.crew import Crew
from warmroute.adapters.embedded.model.meeting import Meeting
from warmroute.adapters.tokens.errors import ModelError

MODEL = make_model()
NAIVE = NaiveLlama(halved_tensors())
CLOSE = {"rtol": 0, "atol": 2e-4}
ROWS = 256
PATIENCE_S = 30

ORPHANS = """
import sys
from tests.unit.test_model_crew import make_crew
crew = make_crew(3)
print(*(mate.pid for mate in crew._mates), flush=True)
sys.stdin.read()
"""


def make_crew(size: int) -> Crew:
    return Crew(MODEL, make_store(128), size, ROWS, ROWS)


@pytest.fixture(params=[1, 2, 3])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    crew = make_crew(request.param)
    yield crew
    crew.close()


@pytest.fixture
def pair() -> Iterator[Crew]:
    crew = make_crew(2)
    yield crew
    crew.close()


def pids(crew: Crew) -> list[int]:
    return [mate.pid for mate in crew._mates]


def test_shared_steps_give_the_logits_of_the_textbook(crew: Crew) -> None:
    """Two prompts, one of them in chunks, over scattered pages; then both decode."""
    ids, other = draw_ids(230, 1), draw_ids(90, 2)
    table = scattered_table(324, 128)
    first, second = table[:58], table[58:]
    crew.forward(make_batch(Part(ids, first, 0, 110)))
    step = make_batch(Part(ids, first, 110, 229), Part(other, second, 0, 89))
    step.sample_rows = np.arange(len(step.token_ids))
    expected = [*NAIVE.logits(ids)[110:229], *NAIVE.logits(other)[:89]]
    np.testing.assert_allclose(crew.forward(step), expected, **CLOSE)
    found = crew.forward(make_batch(Part(ids, first, 229), Part(other, second, 89)))
    expected = [NAIVE.logits(ids)[-1], NAIVE.logits(other)[-1]]
    np.testing.assert_allclose(found, expected, **CLOSE)
    alone = crew.forward(make_batch(Part(other, second, 89)))
    np.testing.assert_allclose(alone[0], expected[1], **CLOSE)


def test_a_step_that_samples_nothing_stores_its_keys(crew: Crew) -> None:
    ids, table = draw_ids(60), one_run(60)
    step = make_batch(Part(ids, table, 0, 50))
    step.sample_rows = step.sample_rows[:0]
    assert crew.forward(step).shape == (0, CONFIG.vocab_size)
    found = crew.forward(make_batch(Part(ids, table, 50)))
    np.testing.assert_allclose(found[0], NAIVE.logits(ids)[-1], **CLOSE)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 39)), min_size=1, max_size=6),
    st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_a_step_of_any_prompts_is_as_one_process_computes_it(
    shapes: list[tuple[int, int]], seed: int
) -> None:
    parts, first = [], 1
    for at, (length, start) in enumerate(shapes):
        table = one_run(length, first)
        parts.append(Part(draw_ids(length, seed + at), table, min(start, length - 1)))
        first += len(table)
    batch = make_batch(*parts, every_row=True)
    crew = make_crew(2)
    try:
        expected = MODEL.forward(batch, make_store(128))
        np.testing.assert_allclose(crew.forward(batch), expected, **CLOSE)
    finally:
        crew.close()


def test_received_attention_is_summed_as_by_one_process(pair: Crew) -> None:
    ids, table = draw_ids(40), one_run(40)
    sums = [
        np.zeros((CONFIG.num_layers, CONFIG.num_kv_heads, 40), np.float32)
        for _ in range(2)
    ]
    pair.forward(make_batch(Part(ids, table, scores=sums[0])))
    MODEL.forward(make_batch(Part(ids, table, scores=sums[1])), make_store())
    np.testing.assert_allclose(*sums, **CLOSE)


class OwnMemory:
    """An attention of its own, as a token budget has it, that notes who calls it."""

    def __init__(self) -> None:
        self.callers: list[int] = []

    def attend(
        self, layer: int, inputs: F32, queries: F32, keys: F32, values: F32
    ) -> F32:
        self.callers.append(os.getpid())
        return np.repeat(values, CONFIG.group_size, axis=0)


def test_an_attention_of_its_own_is_asked_in_the_first_process(pair: Crew) -> None:
    """Beside a sequence over pages, whose logits stay what they are."""
    ids, own = draw_ids(30), OwnMemory()
    pair.forward(make_batch(Part(ids, one_run(30), 0, 29)))
    rows = [Part(ids, one_run(30), 29), Part(ids[:1], one_run(1, 20), attention=own)]
    found = pair.forward(make_batch(*rows))
    assert own.callers == [os.getpid()] * CONFIG.num_layers
    np.testing.assert_allclose(found[0], NAIVE.logits(ids)[-1], **CLOSE)


def broken(row: int) -> Batch:
    batch = make_batch(Part(draw_ids(200), one_run(200)))
    batch.slots = batch.slots.copy()
    batch.slots[row] = 1 << 40
    return batch


def assert_computes_alone(crew: Crew) -> None:
    ids = draw_ids(200)
    found = crew.forward(make_batch(Part(ids, one_run(200))))
    np.testing.assert_allclose(found[0], NAIVE.logits(ids)[-1], **CLOSE)
    assert not pids(crew)


def test_the_error_of_the_own_share_comes_out(
    pair: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    """The processes are ended, and the next step is computed alone."""
    ended = pids(pair)
    with pytest.raises(IndexError, match="out of bounds"):
        pair.forward(broken(0))
    assert_gone(ended)
    assert "engine_processes_ended" in caplog.text
    assert_computes_alone(pair)


def test_a_process_that_fails_fails_the_step_and_not_the_next(pair: Crew) -> None:
    ended = pids(pair)
    with pytest.raises(ModelError, match="ended in the middle of a step"):
        pair.forward(broken(-1))
    assert_gone(ended)
    assert_computes_alone(pair)


def test_a_process_that_was_killed_between_steps_costs_no_step(
    pair: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    (pid,) = pids(pair)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert_computes_alone(pair)
    assert "engine_process_ended code=-9" in caplog.text


@pytest.fixture
def ignored_children() -> Iterator[None]:
    """Ended children leave nothing to wait for, as where SIGCHLD is ignored.

    A program inherits that from the one that started it.
    """
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("ignored_children")
def test_a_killed_process_costs_no_step_where_nobody_waits_for_children(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crew = make_crew(3)
    ended = pids(crew)
    os.kill(ended[0], signal.SIGKILL)
    with pytest.raises(ChildProcessError):
        os.waitpid(ended[0], 0)
    assert_computes_alone(crew)
    assert "engine_process_ended code=unknown" in caplog.text
    assert_gone(ended)


@pytest.mark.usefixtures("ignored_children")
def test_closing_ends_the_processes_where_nobody_waits_for_children() -> None:
    crew = make_crew(3)
    ended = pids(crew)
    crew.close()
    assert_gone(ended)


def test_the_processes_outlive_what_stops_the_first_one_in_order(pair: Crew) -> None:
    """Ctrl-C and a service manager signal all of them, and requests still drain."""
    for pid in pids(pair):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    ids = draw_ids(30)
    found = pair.forward(make_batch(Part(ids, one_run(30))))
    np.testing.assert_allclose(found[0], NAIVE.logits(ids)[-1], **CLOSE)
    assert pids(pair)


def test_a_process_outlives_a_signal_that_comes_as_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork = os.fork

    def signalled() -> int:
        pid = fork()
        if not pid:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        return pid

    monkeypatch.setattr(os, "fork", signalled)
    crew = make_crew(2)
    ids = draw_ids(30)
    crew.forward(make_batch(Part(ids, one_run(30))))
    still = pids(crew)
    crew.close()
    assert still


def test_processes_that_cannot_begin_are_told_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that had begun are ended."""
    fork, begun = os.fork, list[int]()

    def full() -> int:
        if begun:
            raise OSError(errno.EAGAIN, "full")
        begun.append(fork())
        return begun[0]

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(ModelError, match=r"temporarily unavailable; .*--threads 1"):
        make_crew(3)
    assert_gone(begun)


def test_closing_ends_the_processes() -> None:
    crew = make_crew(3)
    ended = pids(crew)
    crew.close()
    crew.close()
    assert_gone(ended)


def assert_gone(ended: list[int]) -> None:
    assert ended
    for pid in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_processes_end_when_the_first_one_is_killed() -> None:
    command = [sys.executable, "-c", ORPHANS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        handles = [os.pidfd_open(int(pid)) for pid in first.stdout.readline().split()]
        first.kill()
        for handle in handles:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            assert poll.poll(PATIENCE_S * 1_000), "a process is still there"
            os.close(handle)
    assert len(handles) == 2


def test_blas_has_its_threads_back_after_a_step(pair: Crew) -> None:
    seen: list[list[int]] = []
    blas = ThreadpoolController().select(user_api="blas")

    def threads() -> list[int]:
        return [one["num_threads"] for one in blas.info()]

    class Watching(OwnMemory):
        def attend(self, *arguments: object) -> F32:
            seen.append(threads())
            return np.zeros((CONFIG.num_heads, CONFIG.head_dim), np.float32)

    before = threads()
    pair.forward(make_batch(Part(draw_ids(1), one_run(1), attention=Watching())))
    assert seen == [[1] * len(before)] * CONFIG.num_layers
    assert threads() == before


@pytest.mark.parametrize("size", [2, 3, 5])
def test_nobody_leaves_a_meeting_before_all_have_come(size: int) -> None:
    meeting, times = Meeting(size), 200
    come, wrong = [0] * size, []

    def member(rank: int) -> None:
        for at in range(1, times + 1):
            come[rank] = at
            meeting.wait(rank, lambda: None)
            wrong.extend(seen for seen in come if not at <= seen <= at + 1)

    threads = [threading.Thread(target=member, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not wrong
    assert come == [times] * size


def test_who_waits_in_vain_is_told_by_the_check() -> None:
    def check() -> None:
        raise ModelError("gone")

    with pytest.raises(ModelError, match="gone"):
        Meeting(2).wait(0, check)
