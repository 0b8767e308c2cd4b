"""The expected cost of a request on each backend; see `ExpectedTtft`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import Final

from warmroute.policies.routing.candidate import Candidate, Choice, Costs, Query
from warmroute.policies.routing.rates import SpeedClass

_MAX_HEAD_PROGRESS: Final = 0.95


def choose_cheapest(
    query: Query,
    candidates: Sequence[Candidate],
    stall_weight: float,
    decode_weight: float,
    alpha_cap: float,
    attention_tokens: float,
    tie_tolerance: float,
    draw: Callable[[], float],
) -> Choice:
    """Price every candidate and choose the cheapest, ties by *draw* in [0, 1)."""
    flat, least, second = price(
        query, candidates, stall_weight, decode_weight, alpha_cap, attention_tokens
    )
    totals = flat[3::4]
    index = totals.index(least)
    limit = least + tie_tolerance * (flat[4 * index] + flat[4 * index + 1])
    if second <= limit:
        equal = _equals(index, totals, limit, candidates)
        # A tenth of the time of choice(), and even enough for so few.
        index = equal[int(draw() * len(equal))]
    matched, reason = candidates[index].matched_tokens, "load"
    if matched:
        reason = "prefix"
        for one in candidates:
            if one.matched_tokens > matched:
                reason = "load"
                break
    return Choice(index, reason, Costs(flat))


def _equals(
    best: int, totals: list[float], limit: float, candidates: Sequence[Candidate]
) -> list[int]:
    """List the ties of *best*; noise in learned speeds alone breaks none."""
    least, first = totals[best], candidates[best]
    matched, requests = first.matched_tokens, first.requests
    equal = []
    for index, total in enumerate(totals):
        if total <= limit:
            one = candidates[index]
            if total == least or (
                one.matched_tokens == matched and one.requests == requests
            ):
                equal.append(index)
    return equal


def price(
    query: Query,
    candidates: Sequence[Candidate],
    stall_weight: float,
    decode_weight: float,
    alpha_cap: float,
    attention_tokens: float = 0.0,
) -> tuple[list[float], float, float]:
    """Return wait, miss, decode and total of all, and the two least totals.

    The numbers stand in one run, four a candidate; seconds. O(candidates).
    """
    now, prompt = query.now, query.prompt_tokens
    surplus = _urgency(query.rho, alpha_cap) - 1.0
    flat_price, deeper = _depth_prices(query, attention_tokens)
    flat: list[float] = []
    least = second = inf
    speed: SpeedClass | None = None
    # The dearest loop of a decision: it skips what is zero.
    for one in candidates:
        if one.speed is not speed:
            speed = one.speed
            alone, per_request, per_token = _decode_prices(query, speed, decode_weight)
        # Half of what sets it apart is believed: see ExpectedTtft.
        rate, matched = sqrt(one.rate * speed.rate), one.matched_tokens
        backlog = outstanding_tokens(one, now) if one.prefill_tokens else 0.0
        wait = (backlog + one.queued_tokens) / rate
        miss = 0.0
        if matched < prompt:
            # The middle of what is missing is half way from the match to the end.
            work = (prompt - matched) * (flat_price + deeper * (matched + prompt))
            others = surplus + stall_weight * one.decodes
            miss = work / rate + others * work / speed.rate
        decode = alone + per_request * one.requests + per_token * one.context_tokens
        total = wait + miss + decode
        if total < second:
            if total < least:
                second, least = least, total
            else:
                second = total
        flat += (wait, miss, decode, total)
    return flat, least, second


def outstanding_tokens(one: Candidate, now: float) -> float:
    """Return the prefill that our requests there still need, as `price` counts it.

    In tokens: of those without a first token, less what the oldest has surely got
    done.
    """
    if not one.prefill_tokens:
        return 0.0
    since, newest = one.head_since, one.last_first_token
    if newest > since:
        since = newest
    done = one.rate * (now - since)
    most = _MAX_HEAD_PROGRESS * one.head_tokens
    backlog = one.prefill_tokens - (done if done < most else most)
    return backlog if backlog > 0.0 else 0.0


def backlog_tokens(one: Candidate, now: float) -> float:
    """Return all the prefill that stands before a request there: ours and others'."""
    return outstanding_tokens(one, now) + one.queued_tokens


def expected_ttft_s(query: Query, one: Candidate) -> float:
    """Return the seconds to the first token there: wait and own prefill, no more."""
    uncached = max(0, query.prompt_tokens - one.matched_tokens)
    return (backlog_tokens(one, query.now) + uncached) / one.rate


def _urgency(rho: float, most: float) -> float:
    """Return what a second of prefill costs everybody, *most* at most."""
    if rho < 1.0 and most * (1.0 - rho) > 1.0:
        return 1.0 / (1.0 - rho)
    return most


def _depth_prices(query: Query, attention_tokens: float) -> tuple[float, float]:
    """Price a token at the start of a prompt, and half a token of depth.

    In tokens of the mean depth of which the rates were learned.
    """
    depth = query.depth_tokens
    if depth is None or not attention_tokens:
        return 1.0, 0.0
    whole = attention_tokens + depth
    return attention_tokens / whole, 0.5 / whole


def _decode_prices(
    query: Query, speed: SpeedClass, decode_weight: float
) -> tuple[float, float, float]:
    """Price the decode of this request alone, a request and a token beside it."""
    line = speed.line
    scaled = decode_weight * query.output_tokens * line.scale
    per_request, per_token = scaled * line.request_s, scaled * line.token_s
    alone = scaled * line.base_s + per_request + per_token * query.prompt_tokens
    return alone, per_request, per_token
