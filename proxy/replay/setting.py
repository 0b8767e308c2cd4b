"""What a trace is replayed on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.view_grade import EXACT, ViewGrade

TTFT_OBJECTIVE_S = 2.0
TPOT_OBJECTIVE_S = 0.05


@dataclass(frozen=True, slots=True)
class Setting:
    """A fleet of engines, and how the trace is played to it.

    Attributes:
        backends: How many engines.
        capacity_tokens: Tokens that the memory of each holds.
        prefill_rate: Prompt tokens that each computes in a second; of engines that
            batch, about.
        speed: How much faster than recorded the requests come.
        jitter_s: Recorded seconds by which they come later at most, at random.
        seeds: How often all is played, each time with other random numbers.
        batching: The engines' constants; None for the plain queue.
        sessions: How many sessions run at once.
        ttft_slo_s: Most seconds to the first token that are good.
        tpot_slo_s: Most seconds a token that are good.
        view: What the router knows of the caches.
        slow: By number, how many times slower an engine is than the others.
        misjudged: By number, how many times faster the router believes an engine.
        mislearned: By number, how many times faster it was until the replay began.
        queue: Order of the router's queue; None holds nothing back.
        dies_at: By number, when an engine stops for good.
    """

    backends: int = 8
    capacity_tokens: int = 1_000_000
    prefill_rate: float = 8000.0
    speed: float = 1.0
    jitter_s: float = 0.0
    seeds: int = 1
    batching: EngineConstants | None = None
    sessions: int = 32
    ttft_slo_s: float = TTFT_OBJECTIVE_S
    tpot_slo_s: float = TPOT_OBJECTIVE_S
    view: ViewGrade = EXACT
    slow: Mapping[int, float] = field(default_factory=dict)
    misjudged: Mapping[int, float] = field(default_factory=dict)
    dies_at: Mapping[int, float] = field(default_factory=dict)
    mislearned: Mapping[int, float] = field(default_factory=dict)
    queue: str | None = None
