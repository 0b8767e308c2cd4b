"""One trace under several policies, and under what no policy can beat."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from warmroute.proxy.replay.arrival import ClosedLoop, OpenLoop, Workload
from warmroute.proxy.replay.figures import Figures, half_width, mean_figures
from warmroute.proxy.replay.fleets import FleetMaker, oracle_fleets, routed_fleet
from warmroute.proxy.replay.play import Fleet
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.tally import Tally
from warmroute.proxy.replay.trace import Trace

Progress = Callable[[int, int, str], object]
"""Called with the requests replayed, the requests in all, and what is replayed."""

_REPORT_EVERY: Final = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one policy or oracle.

    Attributes:
        name: The policy, or ``oracle_pooled`` or ``oracle_infinite``.
        figures: The means over all seeds.
        ttft_mean_ci95_s: Half the 95 % confidence interval of the mean TTFT; None
            with one seed.
        runs: The figures of each seed.
    """

    name: str
    figures: Figures
    ttft_mean_ci95_s: float | None
    runs: tuple[Figures, ...] = ()


class Comparison:
    """Replay a trace under policies and oracles.

    For one seed all of them get the same requests at the same times.

    Args:
        trace: What to replay.
        setting: What to replay it on, and how.
        on_progress: Told every 500 requests.
    """

    __slots__ = ("_done", "_on_progress", "_setting", "_total", "_trace")

    def __init__(
        self, trace: Trace, setting: Setting, on_progress: Progress | None = None
    ) -> None:
        self._trace = trace if setting.batching is None else trace.indexed()
        self._setting = setting
        self._on_progress = on_progress
        self._done = self._total = 0

    def __repr__(self) -> str:
        return f"<Comparison on {self._trace.name}, {self._setting!r}>"

    def run(
        self, names: Sequence[str], with_oracles: bool = True
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Return the outcomes of the policies *names*, and those of the oracles.

        Raises:
            PolicyError: A policy is unknown.
        """
        setting, trace = self._setting, self._trace
        makers = {name: routed_fleet(name, setting, trace) for name in names}
        oracles = oracle_fleets(setting, trace) if with_oracles else {}
        self._done = 0
        self._total = (len(makers) + len(oracles)) * len(trace.requests)
        self._total *= setting.seeds
        routed = [self._outcome(name, make) for name, make in makers.items()]
        return routed, [self._outcome(name, make) for name, make in oracles.items()]

    def _outcome(self, name: str, make: FleetMaker) -> Outcome:
        runs = [
            self._run(name, make(seed), seed) for seed in range(self._setting.seeds)
        ]
        spread = half_width([run.ttft_mean_s for run in runs])
        return Outcome(name, mean_figures(runs), spread, tuple(runs))

    def _run(self, name: str, fleet: Fleet, seed: int) -> Figures:
        setting = self._setting
        tally = Tally(setting.backends, setting.ttft_slo_s, setting.tpot_slo_s)

        num_served = 0

        def progress() -> None:
            nonlocal num_served
            num_served += 1
            if num_served % _REPORT_EVERY == 0:
                self._tell(num_served, name)

        self._tell(0, name)
        fleet.play(self._workload(seed), tally, progress)
        self._done += len(self._trace.requests)
        return tally.figures()

    def _tell(self, num_served: int, name: str) -> None:
        if self._on_progress is not None:
            self._on_progress(self._done + num_served, self._total, name)

    def _workload(self, seed: int) -> Workload:
        trace, setting = self._trace, self._setting
        rng = Random(f"arrivals {seed}")  # as the clairvoyant oracle draws
        if trace.sessions:
            return ClosedLoop(trace.sessions, setting.sessions, rng)
        return OpenLoop(trace, setting.speed, setting.jitter_s, rng)
