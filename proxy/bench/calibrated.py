"""The constants of one engine, as ``warmroute replay --constants`` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from warmroute.adapters.base import Endpoint
from warmroute.adapters.registry import detect
from warmroute.policies.errors import AdapterError
from warmroute.proxy.bench.calibration import Calibration, Progress
from warmroute.proxy.bench.step_fit import StepCosts, fit_steps
from warmroute.proxy.bench.stream_client import StreamClient

_CONTROL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and what cannot be measured.

    Attributes:
        url: Where the engine listens.
        model: As requests name it.
        headers: Sent with each request.
        max_prompt: Longest prompt, in tokens.
        max_batch: Most streams at once.
        reps: Times that each is measured.
        timeout_s: Bound of one answer.
        max_batched_tokens: Tokens that a step of the engine computes at most.
        max_sequences: Sequences that it runs at once at most.
        kv_tokens: Tokens that it holds; None asks it.
    """

    url: str
    model: str
    headers: Mapping[str, str]
    max_prompt: int
    max_batch: int
    reps: int
    timeout_s: float
    max_batched_tokens: int
    max_sequences: int
    kv_tokens: int | None


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What was found.

    Attributes:
        costs: The measured constants.
        plan: What was measured, with the constants that were not.
        kv_tokens: Tokens that the engine holds; None where it does not tell.
    """

    costs: StepCosts
    plan: Plan
    kv_tokens: int | None

    def as_object(self) -> dict[str, float | int]:
        """Return the constants of the batching engine model."""
        costs = self.costs
        found: dict[str, float | int] = {
            "step_s": costs.step_s,
            "prefill_s_per_token": costs.prefill_s_per_token,
            "attention_s_per_pair": costs.attention_s_per_pair,
            "sequence_s": costs.sequence_s,
            "context_s_per_token": costs.context_s_per_token,
            "max_batched_tokens": self.plan.max_batched_tokens,
            "max_sequences": self.plan.max_sequences,
        }
        if self.kv_tokens is not None:
            found["kv_tokens"] = self.kv_tokens
        return found


async def calibrate(plan: Plan, on_progress: Progress) -> Calibrated:
    """Measure an engine.

    Raises:
        BenchError: It does not answer as asked.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        kv_tokens = plan.kv_tokens or await _capacity(plan, session)
        client = StreamClient(
            session, plan.url, plan.model, plan.headers, plan.timeout_s
        )
        run = Calibration(
            client, plan.max_prompt, plan.max_batch, plan.reps, on_progress
        )
        prefills, decodes = await run.run()
    costs = fit_steps(prefills, decodes, plan.max_batched_tokens)
    return Calibrated(costs, plan, kv_tokens)


async def _capacity(plan: Plan, session: aiohttp.ClientSession) -> int | None:
    """Ask the engine how many tokens it holds; None where it does not tell."""
    url = plan.url.rstrip("/")
    endpoint = Endpoint(session, url, plan.headers, _CONTROL_TIMEOUT_S)
    try:
        adapter = await detect(endpoint, ())
        return (await adapter.facts(endpoint)).capacity_tokens
    except AdapterError:
        return None
