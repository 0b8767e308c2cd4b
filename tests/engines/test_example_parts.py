"""The example's own parts, without an engine."""

from pathlib import Path
from typing import NamedTuple

import pytest
from two_vllm import cache as cache_module
from two_vllm import environment
from two_vllm.environment import ensure_environment, environment_folder

from warmroute.proxy.demo.chats import num_chats, read_chats
from warmroute.proxy.demo.compare import outcome
from warmroute.proxy.demo.engine_view import Counters, parse_counters
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.load import Answer, percentile
from warmroute.proxy.demo.report import is_good, verdict

ENVIRONMENT = "two_vllm.environment"
METRICS = """\
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.5e+03
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2000.0
vllm:request_success_total{engine="0",finished_reason="stop"} 3.0
vllm:request_success_total{engine="0",finished_reason="length"} 4.0
vllm:num_requests_running{engine="0"} 1.0
vllm:request_success_created{engine="0"} 1.7e+09
"""


class FakeDisk(NamedTuple):
    """Stands for what shutil.disk_usage returns."""

    free: int


class FakeCommands:
    """Records commands instead of running them; one may fail."""

    def __init__(self, failing: str = "", log_text: str = "") -> None:
        self.lines: list[str] = []
        self._failing = failing
        self._log_text = log_text

    def __call__(self, args: list[object], log: Path, step: object) -> None:
        line = " ".join(str(arg) for arg in args)
        self.lines.append(line)
        if self._failing and self._failing in line:
            log.write_text(self._log_text)
            raise DemoError(f"pip failed, its log is {log}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARMROUTE_CACHE", str(tmp_path))
    return tmp_path


def test_counters_are_summed_over_labels() -> None:
    expected = Counters(queried_tokens=2000, hit_tokens=1500, finished=7, running=1)
    assert expected == parse_counters(METRICS)


def test_a_request_finished_twice_is_noticed() -> None:
    answers = [Answer("x", ttft_s=0.1)]
    once = outcome("p", answers, {"a": Counters(finished=1)}, 1.0)
    twice = outcome(
        "p", answers, {"a": Counters(finished=1), "b": Counters(finished=1)}, 1.0
    )
    assert (once.is_exactly_once, twice.is_exactly_once) == (True, False)


def test_replays_with_failed_requests_are_not_compared() -> None:
    good = [Answer("x", ttft_s=0.1, prompt_tokens=9, cached_tokens=8)]
    counters = {"a": Counters(queried_tokens=9, hit_tokens=8, finished=1)}
    whole = outcome("whole", good, counters, 1.0)
    failed = outcome("failed", [Answer("y", error="503")], {"a": Counters()}, 1.0)
    assert "1.00x the hit ratio" in verdict([whole, whole])
    assert "failed against whole: not comparable" in verdict([whole, failed])
    assert is_good([whole])
    assert not is_good([whole, failed])


def test_percentile_is_the_nearest_rank() -> None:
    assert [
        percentile(range(1, 101), 0.5),
        percentile(range(1, 101), 0.99),
        percentile([7], 0.99),
    ] == [50, 99, 7]


def test_chats_come_in_the_same_order_and_mix_both_sources() -> None:
    names = [chat.name for chat in read_chats(12)]
    assert names == [chat.name for chat in read_chats(20)][:12]
    assert sum(name.startswith("mt-bench") for name in names) == 3


def test_a_chat_ends_after_the_most_turns_that_are_asked_for() -> None:
    for whole, cut in zip(read_chats(12), read_chats(12, most_turns=9), strict=True):
        assert cut.turns == whole.turns[:9]
        assert cut.opening == whole.opening


def test_every_turn_adds_to_the_history_and_airline_chats_have_an_answer() -> None:
    for chat in read_chats(num_chats()):
        assert len(chat.turns) >= 8
        assert all(turn.added for turn in chat.turns)
        if chat.name.startswith("airline"):
            assert all(turn.answer for turn in chat.turns)


def test_an_environment_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = FakeCommands()
    monkeypatch.setattr(environment, "run_logged", commands)
    monkeypatch.setattr(cache_module, "mark_ready", _mark_with_folder)
    first = ensure_environment()
    made = len(commands.lines)
    assert first == ensure_environment()
    assert 0 < made == len(commands.lines)


def test_a_half_made_environment_is_removed_and_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remains = environment_folder() / "bin" / "remains"
    remains.parent.mkdir(parents=True)
    remains.touch()
    monkeypatch.setattr(environment, "run_logged", FakeCommands())
    monkeypatch.setattr(cache_module, "mark_ready", _mark_with_folder)
    ensure_environment()
    assert not remains.exists()


def test_a_failed_install_leaves_no_ready_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = FakeCommands("pip", "ERROR: No matching distribution found for torch")
    monkeypatch.setattr(environment, "run_logged", failing)
    with pytest.raises(DemoError, match=r"log is .*\n.*PIP_EXTRA_INDEX_URL"):
        ensure_environment()
    assert not cache_module.is_ready(environment_folder())


def test_a_full_disk_is_named_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{ENVIRONMENT}.shutil.disk_usage", lambda _: FakeDisk(10**9))
    with pytest.raises(DemoError, match=r"has 1\.0 GB free.*WARMROUTE_CACHE"):
        ensure_environment()
    assert not environment_folder().exists()


def test_a_python_without_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{ENVIRONMENT}.sys.version_info", (3, 9))
    with pytest.raises(DemoError, match=r"Python 3\.9"):
        ensure_environment()


def _mark_with_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / ".ready").touch()
