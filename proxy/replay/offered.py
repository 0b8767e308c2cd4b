"""How much work a trace offers to a fleet, as a share of what it can do."""

from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace


def offered_load(trace: Trace, setting: Setting) -> float | None:
    """Return the load without any cache; None where nothing has a time.

    Of plain queues: prompt tokens over what all engines can prefill. Of engines that
    batch: the prefill of each prompt in one step, and of each token of an answer its
    share in a step with as many average requests as memory holds.
    """
    seconds = trace.duration_s / setting.speed
    if not seconds:
        return None
    if setting.batching is None:
        work_s = trace.prompt_tokens / setting.prefill_rate
    else:
        work_s = _batching_work_s(trace, setting.batching, setting.capacity_tokens)
    return work_s / seconds / setting.backends


def _batching_work_s(
    trace: Trace, constants: EngineConstants, capacity_tokens: int
) -> float:
    requests = trace.requests
    prompts_s = sum(constants.prefill_s(one.prompt_tokens) for one in requests)
    answers = sum(one.output_tokens for one in requests)
    mean = (trace.prompt_tokens + answers) / len(requests)
    batch = min(constants.max_sequences, max(1.0, capacity_tokens / mean))
    step_s = constants.step_s + batch * (
        constants.sequence_s + constants.context_s_per_token * mean
    )
    return prompts_s + answers * step_s / batch
