"""One trace under several policies, and under what no policy can beat."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from warmroute.policies.registry import policies
from warmroute.policies.routing.base import Policy, build, options
from warmroute.proxy.replay.figures import Figures, half_width, mean_figures
from warmroute.proxy.replay.pooled import Fleet, infinite_cache, pooled_cache
from warmroute.proxy.replay.routed import RoutedFleet
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.tally import Tally
from warmroute.proxy.replay.trace import Trace

Progress = Callable[[int, int, str], object]
"""Called with the requests replayed, the requests in all, and what is replayed."""

FleetMaker = Callable[[int], Fleet]
"""Makes a fleet from a seed."""

# Here a decode slows nothing and a prefill stops nobody, so neither has a price.
_WITHOUT_DECODE: Final = {"stall_weight": 0.0, "decode_weight": 0.0}
_REPORT_EVERY: Final = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one policy or oracle.

    Attributes:
        name: The policy, or ``oracle_pooled`` or ``oracle_infinite``.
        figures: The means over all seeds.
        ttft_mean_ci95_s: Half the 95 % confidence interval of the mean TTFT; None
            with one seed.
    """

    name: str
    figures: Figures
    ttft_mean_ci95_s: float | None


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
        self._trace = trace
        self._setting = setting
        self._on_progress = on_progress
        self._done = self._total = 0

    def __repr__(self) -> str:
        return f"<Comparison on {self._trace.name}, {self._setting!r}>"

    def run(self, names: Sequence[str]) -> tuple[list[Outcome], list[Outcome]]:
        """Return the outcomes of the policies *names*, and those of the oracles.

        Raises:
            PolicyError: A policy is unknown.
        """
        setting, size = self._setting, self._trace.block_size
        makers = {name: self._maker(name) for name in names}
        oracles: dict[str, FleetMaker] = {
            "oracle_pooled": lambda seed: pooled_cache(setting, size),
            "oracle_infinite": lambda seed: infinite_cache(setting, size),
        }
        self._done = 0
        self._total = (len(makers) + len(oracles)) * len(self._trace.requests)
        self._total *= setting.seeds
        routed = [self._outcome(name, make) for name, make in makers.items()]
        return routed, [self._outcome(name, make) for name, make in oracles.items()]

    def _maker(self, name: str) -> FleetMaker:
        return lambda seed: RoutedFleet(
            build_policy(name, seed), self._setting, self._trace.block_size
        )

    def _outcome(self, name: str, make: FleetMaker) -> Outcome:
        runs = [
            self._run(name, make(seed), seed) for seed in range(self._setting.seeds)
        ]
        spread = half_width([run.ttft_mean_s for run in runs])
        return Outcome(name, mean_figures(runs), spread)

    def _run(self, name: str, fleet: Fleet, seed: int) -> Figures:
        setting = self._setting
        rng = Random(f"arrivals {seed}")
        arrivals = self._trace.arrivals(setting.speed, setting.jitter_s, rng)
        tally = Tally(setting.backends)
        for number, (now, request) in enumerate(arrivals):
            if number % _REPORT_EVERY == 0 and self._on_progress is not None:
                self._on_progress(self._done + number, self._total, name)
            tally.add(fleet.serve(request, now), now)
        self._done += len(arrivals)
        return tally.figures()


def build_policy(name: str, seed: int) -> Policy:
    """Build the policy called *name*, with its random draws from *seed*.

    Raises:
        PolicyError: There is no such policy.
    """
    known = {option.name for option in options(policies.get(name))}
    values = {k: v for k, v in _WITHOUT_DECODE.items() if k in known}
    return build(name, values, Random(f"policy {seed}"))
