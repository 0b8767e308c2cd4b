"""The load of one request, and what its first token and its end teach.

The prefill rate of a backend is, at each first token, of EWMA sums,

    rate = (tok + K * F) / (busy + K)        F = sum tok / sum busy of its class

where *busy* is the time since its previous first token or since the dispatch,
whichever came later. K is 150 s, and less the surer it is that the backend has
another speed than its class (`samples.py`). Requests that are all but cached measure
the engine's step time instead of its speed, so they are not taken. A backend that gets
no work forgets by time: the share that its own sums have in the rate halves every ten
minutes, so that a slow hour ends and its class speaks for it again.

An answer that is not streamed shows no first token. Its prefill counts as done
when a later request shows one, or when the rate says so, and teaches nothing.
"""

from __future__ import annotations

from math import exp2
from typing import Final

from warmroute.policies.routing.base import Candidate
from warmroute.policies.routing.samples import Sample

HALF_LIFE_S: Final = 600.0
"""Seconds without a sample in which a backend's own sums lose half their weight."""

_KEEP: Final = 0.995
_MIN_SAMPLE_TOKENS: Final = 64
_MAX_SLOWDOWN: Final = 5.0  # a sample may look this much slower than expected
_SLACK_S: Final = 0.5
_MIN_ITL_TOKENS: Final = 16

_PREFILL, _DECODE, _DONE = range(3)
_STAGES = ("prefill", "decode", "done")


class Reservation:
    """The load of one request on one backend, from dispatch to its end."""

    __slots__ = (
        "_begun_context",
        "_begun_requests",
        "_first_token_at",
        "_sample",
        "_stage",
        "candidate",
        "prompt_tokens",
        "since",
        "streamed",
        "uncached_tokens",
    )

    def __init__(
        self,
        candidate: Candidate,
        prompt_tokens: int,
        uncached_tokens: int,
        now: float,
        streamed: bool,
    ) -> None:
        self.candidate = candidate
        self.prompt_tokens = prompt_tokens
        self.uncached_tokens = uncached_tokens
        self.since = now
        self.streamed = streamed
        self._stage = _PREFILL
        self._sample: Sample | None = None
        candidate.requests += 1
        candidate.context_tokens += prompt_tokens
        candidate.prefill_tokens += uncached_tokens
        waiting = candidate.waiting
        if not waiting:
            candidate.head_tokens = uncached_tokens
            candidate.head_since = now
        waiting[self] = None

    def __repr__(self) -> str:
        stage = _STAGES[self._stage]
        return f"<Reservation {self.candidate.name} {self.prompt_tokens} {stage}>"

    def first_token(self, now: float) -> None:
        """Move from prefill to decode and learn the rate; later calls do nothing."""
        if self._stage != _PREFILL:
            return
        if not self.streamed:
            self._start_decode(now)
            return
        candidate = self.candidate
        start, tokens = self._finish_hidden()
        busy_s = now - max(candidate.last_first_token, start)
        self._start_decode(now)
        if tokens >= _MIN_SAMPLE_TOKENS:
            context = self.prompt_tokens - tokens / 2
            self._sample = _learn_rate(candidate, tokens, context, busy_s, now)
        candidate.last_first_token = now

    def release(
        self,
        now: float,
        output_tokens: int | None = None,
        learn: bool = True,
        cached_tokens: int | None = None,
    ) -> None:
        """Take the load away; every exit may call it, the first call counts.

        Args:
            now: Monotonic seconds.
            output_tokens: Length of the answer, where known.
            learn: False for requests that were cancelled or failed.
            cached_tokens: The engine's report; puts a wrong rate sample right.
        """
        stage = self._stage
        if stage == _DONE:
            return
        candidate = self.candidate
        if learn and output_tokens:
            candidate.speed.pool.learn_output(output_tokens)
            if stage == _DECODE and self.streamed and output_tokens >= _MIN_ITL_TOKENS:
                self._learn_itl(now, output_tokens)
        if self._sample is not None and learn and cached_tokens is not None:
            self._put_right(self._sample, cached_tokens)
        if stage == _PREFILL:
            self._leave_queue()
        else:
            candidate.decodes -= 1
        candidate.requests -= 1
        candidate.context_tokens -= self.prompt_tokens
        self._stage = _DONE

    def presume_first_token(self, at: float) -> None:
        """Count the prefill of an answer that is not streamed as done."""
        self._start_decode(at)
        self.candidate.last_first_token = at

    def _start_decode(self, now: float) -> None:
        self._leave_queue()
        self._stage = _DECODE
        candidate = self.candidate
        candidate.decodes += 1
        if self.streamed:
            self._first_token_at = now
            self._begun_requests = candidate.requests
            self._begun_context = candidate.context_tokens

    def _leave_queue(self) -> None:
        candidate = self.candidate
        candidate.prefill_tokens -= self.uncached_tokens
        waiting = candidate.waiting
        del waiting[self]
        if waiting:
            head = next(iter(waiting))
            candidate.head_tokens = head.uncached_tokens
            candidate.head_since = head.since
        else:
            candidate.head_tokens = 0

    def _finish_hidden(self) -> tuple[float, int]:
        start = self.since
        tokens = self.uncached_tokens
        waiting = self.candidate.waiting
        while not (head := next(iter(waiting))).streamed:
            start = min(start, head.since)
            tokens += head.uncached_tokens
            head._start_decode(self.since)
        return start, tokens

    def _put_right(self, sample: Sample, cached_tokens: int) -> None:
        """Correct what was learned, where the engine had cached more or less."""
        candidate = self.candidate
        wrong = self.prompt_tokens - cached_tokens - self.uncached_tokens
        if wrong:
            candidate.tok = max(0.0, candidate.tok + wrong)
            sample.tokens = max(0, sample.tokens + wrong)
            candidate.samples.has_news = True

    def _learn_itl(self, now: float, output_tokens: int) -> None:
        candidate = self.candidate
        observed_s = (now - self._first_token_at) / (output_tokens - 1)
        candidate.speed.line.learn(
            observed_s,
            (self._begun_requests + candidate.requests) / 2,
            (self._begun_context + candidate.context_tokens) / 2,
        )


def shrunk_rate(candidate: Candidate, now: float) -> float:
    """Return the prefill rate of a backend, shrunk towards that of its class."""
    own = exp2((candidate.learned_at - now) / HALF_LIFE_S)
    shrink_s = candidate.shrink_s
    return (own * candidate.tok + shrink_s * candidate.speed.rate) / (
        own * candidate.busy + shrink_s
    )


def _learn_rate(
    candidate: Candidate, tokens: int, context: float, busy_s: float, now: float
) -> Sample:
    expected_s = tokens / candidate.rate
    decode_s = 0.0
    if candidate.decodes > 1:  # this request is one of them by now
        decode_s = candidate.speed.line.itl_s(
            candidate.decodes - 1, candidate.context_tokens
        )
    sample = Sample(tokens, busy_s, context, decode_s)
    kept = candidate.samples.add(sample, expected_s)
    counted_s = min(busy_s, _SLACK_S + _MAX_SLOWDOWN * expected_s)
    keep = _KEEP * exp2((candidate.learned_at - now) / HALF_LIFE_S)
    candidate.tok = keep * candidate.tok + tokens
    candidate.busy = keep * candidate.busy + counted_s
    candidate.learned_at = now
    candidate.rate = shrunk_rate(candidate, now)
    return kept


def presume_prefilled(candidate: Candidate, now: float) -> None:
    """Count the hidden prefills at the head that must be over by now as done."""
    while candidate.waiting:
        head = next(iter(candidate.waiting))
        if head.streamed:
            return
        start = max(candidate.last_first_token, head.since)
        done = start + head.uncached_tokens / candidate.rate
        if done > now:
            return
        head.presume_first_token(done)
