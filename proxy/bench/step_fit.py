"""From measured times to the constants of a step of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from warmroute.policies.routing.least_squares import solve_nonnegative

# step, prefill token, attention pair, sequence, token of context, and what a request
# takes outside the engine's steps.
_UNKNOWNS = 6
_LEAST_STEP_S = 1e-6


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Seconds to the first token of a prompt alone in the engine."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """Seconds of a step with some sequences, each with some tokens of context."""

    sequences: int
    context_tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The constants, in seconds, and how well they fit.

    Attributes:
        step_s: Of every step.
        prefill_s_per_token: Of a prompt token that is computed.
        attention_s_per_pair: Of a token before it that it attends to.
        sequence_s: Of a running sequence, a step.
        context_s_per_token: Of a token that a decode attends to, a step.
        request_s: Of a request, outside the steps.
        error: Root of the mean squared relative error of the times.
    """

    step_s: float
    prefill_s_per_token: float
    attention_s_per_pair: float
    sequence_s: float
    context_s_per_token: float
    request_s: float
    error: float


def fit_steps(
    prefills: Sequence[PrefillTime],
    decodes: Sequence[DecodeTime],
    max_batched_tokens: int,
) -> StepCosts:
    """Fit the constants to the times, by least squares of relative errors.

    None of them comes out negative. O(times).
    """
    rows = [_prefill_row(one, max_batched_tokens) for one in prefills]
    rows += [
        [1.0, 0.0, 0.0, one.sequences, one.sequences * one.context_tokens, 0.0]
        for one in decodes
    ]
    times = [one.seconds for one in prefills] + [one.seconds for one in decodes]
    weighed = [
        [part / seconds for part in row]
        for row, seconds in zip(rows, times, strict=True)
    ]
    # Columns of one size, so that the descent is quick.
    sizes = [sqrt(sum(row[at] ** 2 for row in weighed)) or 1.0 for at in range(6)]
    even = [[p / size for p, size in zip(row, sizes, strict=True)] for row in weighed]
    gram = [
        [sum(row[a] * row[b] for row in even) for b in range(_UNKNOWNS)]
        for a in range(_UNKNOWNS)
    ]
    target = [sum(row[a] for row in even) for a in range(_UNKNOWNS)]
    found = solve_nonnegative(gram, target)
    errors = [sum(p * x for p, x in zip(row, found, strict=True)) - 1.0 for row in even]
    step, token, pair, sequence, context, request = (
        x / size for x, size in zip(found, sizes, strict=True)
    )
    error = sqrt(sum(one * one for one in errors) / len(errors))
    # A step that costs nothing would let simulated time stand still.
    step = max(step, _LEAST_STEP_S)
    return StepCosts(step, token, pair, sequence, context, request, error)


def _prefill_row(one: PrefillTime, max_batched_tokens: int) -> list[float]:
    steps = ceil(one.tokens / max_batched_tokens)
    pairs = one.tokens * (one.tokens + 1) / 2
    return [steps, one.tokens, pairs, steps, 0.0, 1.0]
