"""The ledger: one record a request, and the counts behind every metric."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.ledger.flow import Flow
from warmroute.proxy.ledger.histogram import ROUTING_BOUNDS_S, Histogram
from warmroute.proxy.ledger.tokens import TokenTotals

REASONS: Final = frozenset({"prefix", "load", "session", "pin", "only", "fallback"})
OTHER: Final = "other"

_MAX_LABELS: Final = 256
_WARNING_GAP_S: Final = 1.0

logger = logging.getLogger(__name__)


class Ledger:
    """Keep the last decisions and count all of them.

    Everything on the request path is plain integers; Prometheus is met only
    at a scrape. One event loop owns a ledger.

    Args:
        max_records: Records kept at most.
        max_bytes: Bytes of records kept at most, by their own estimate.
    """

    __slots__ = (
        *("_bytes", "_departed", "_flows", "_gone", "_max_bytes", "_max_records"),
        *("_models", "_ring", "_warned", "listeners", "policy_errors"),
        *("rejections", "retries", "routing"),
    )

    def __init__(
        self, max_records: int = 10_000, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._ring: deque[Decision] = deque()
        self._bytes = 0
        self._models = {OTHER}
        self._flows: dict[tuple[str | None, str], Flow] = {}
        self._departed: list[Flow] = []
        self._gone = TokenTotals()
        self._warned: dict[tuple[str, str], tuple[float, int]] = {}
        self.retries: dict[str, int] = {}
        self.rejections: dict[str, int] = {}
        self.policy_errors: dict[str, int] = {}
        self.routing = Histogram(ROUTING_BOUNDS_S)
        self.listeners: list[Callable[[Decision], None]] = []

    def configure(self, max_records: int, max_bytes: int) -> None:
        """Take over other bounds; the next record pushes out what is too much."""
        self._max_records = max_records
        self._max_bytes = max_bytes

    def know_models(self, names: Iterable[str]) -> None:
        """Give *names* labels of their own; all other models share ``other``.

        Only names that backends announced belong here, never a client's.
        """
        for name in names:
            if len(self._models) >= _MAX_LABELS:
                return
            self._models.add(name)

    def forget_backend(self, name: str) -> None:
        """Drop the series of a removed backend; the totals keep its tokens."""
        for key in [key for key in self._flows if key[1] == name]:
            self._departed.append(self._flows.pop(key))
        self._fold_departed()

    def open(self, decision: Decision, routing_s: float) -> None:
        """Record a decision that is about to be sent; O(1).

        Args:
            decision: The decision; the ledger sets its ``flow``.
            routing_s: Seconds from the parsed request to the decision.
        """
        self._enter(decision)
        self.routing.observe(routing_s)
        self._keep(decision)

    def refuse(
        self, decision: Decision, status: int, error: str, duration_s: float
    ) -> None:
        """Record a decision that was not sent: no backend is chosen, or counted."""
        decision.chosen = ""
        decision.predicted_tokens = 0
        decision.status = status
        decision.error = error
        decision.duration_s = duration_s
        self._keep(decision)
        if logger.isEnabledFor(logging.DEBUG):
            _log_access(decision)

    def reopen(self, decision: Decision, index: int, reason: str) -> None:
        """Send *decision* to candidate *index* instead, because of *reason*."""
        if decision.flow is not None:
            decision.flow.in_flight -= 1
        self.retries[reason] = self.retries.get(reason, 0) + 1
        decision.attempts += 1
        decision.index = index
        decision.chosen = decision.roster.candidates[index]
        decision.predicted_tokens = decision.matched[index]
        self._enter(decision)

    def settle(
        self,
        decision: Decision,
        status: int,
        duration_s: float,
        seen_tokens: int = 0,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
        ttft_s: float | None = None,
        error: str | None = None,
    ) -> None:
        """Close the record of a request; the first call counts, others do not.

        Args:
            decision: What `open` was given.
            status: The status the client got; 499 when it left before one.
            duration_s: Seconds from the request's arrival to its end.
            seen_tokens: Leading prompt tokens that the fleet had seen before.
            prompt_tokens: The engine's count, when it told.
            cached_tokens: The engine's cached tokens, when it told.
            output_tokens: The engine's count, when it told.
            ttft_s: Seconds to the first token, when one came.
            error: Our stable code, when the answer is an error of ours.
        """
        if decision.status is not None:
            return
        decision.status = status
        decision.duration_s = duration_s
        decision.cached_tokens = cached_tokens
        decision.output_tokens = output_tokens
        decision.ttft_s = ttft_s
        decision.error = error
        flow = decision.flow or self._flow(decision.model, decision.chosen)
        flow.end(status, duration_s, ttft_s)
        if ttft_s is not None or 200 <= status < 300:
            classes = decision.classify(seen_tokens, prompt_tokens)
            flow.count_tokens(classes, decision.predicted_tokens, cached_tokens)
        if error is not None:
            self._warn(decision, error)
        if logger.isEnabledFor(logging.DEBUG):
            _log_access(decision)
        if self.listeners:
            self._tell(decision)

    def rejected(self, code: str) -> None:
        """Count a request that was answered without a decision."""
        self.rejections[code] = self.rejections.get(code, 0) + 1

    def policy_failed(self, plugin: str) -> None:
        """Count an exception of a policy plugin."""
        self.policy_errors[plugin] = self.policy_errors.get(plugin, 0) + 1

    def find(self, request_id: str) -> Decision | None:
        """Return the newest record of *request_id* that is kept; O(records)."""
        for decision in reversed(self._ring):
            if decision.request_id == request_id:
                return decision
        return None

    def newest(self) -> Iterator[Decision]:
        """Iterate over the records kept, newest first."""
        return reversed(self._ring)

    def flows(self) -> list[Flow]:
        """Return the counters of every (model, backend) met so far."""
        return list(self._flows.values())

    @property
    def choices(self) -> dict[tuple[str, str, str], int]:
        """Return the requests sent by policy, reason and backend."""
        counts: dict[tuple[str, str, str], int] = {}
        for flow in self._flows.values():
            for (policy, reason), num in flow.choices.items():
                key = (policy, reason, flow.backend)
                counts[key] = counts.get(key, 0) + num
        return counts

    @property
    def totals(self) -> TokenTotals:
        """Return the token classes of all requests, also of removed backends."""
        self._fold_departed()
        totals = TokenTotals()
        totals.add(self._gone.snapshot())
        for flow in (*self._flows.values(), *self._departed):
            totals.add(flow.tokens.snapshot())
        return totals

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes the records hold."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        return f"<Ledger records={len(self._ring)} bytes={self._bytes}>"

    def _keep(self, decision: Decision) -> None:
        ring = self._ring
        ring.append(decision)
        self._bytes += decision.size_bytes
        while len(ring) > self._max_records or self._bytes > self._max_bytes:
            self._bytes -= ring.popleft().size_bytes

    def _enter(self, decision: Decision) -> None:
        chosen, model = decision.chosen, decision.model
        flow = self._flows.get((model, chosen)) or self._flow(model, chosen)
        flow.in_flight += 1
        decision.flow = flow
        try:
            flow.choices[decision.policy, decision.reason] += 1
        except KeyError:
            reason = decision.reason if decision.reason in REASONS else OTHER
            key = (decision.policy, reason)
            flow.choices[key] = flow.choices.get(key, 0) + 1

    def _flow(self, model: str | None, backend: str) -> Flow:
        label = model if model is not None and model in self._models else OTHER
        flow = self._flows.get((label, backend))
        if flow is None:
            flow = self._flows[label, backend] = Flow(label, backend)
        return flow

    def _fold_departed(self) -> None:
        """Sum up the flows of removed backends whose last request has ended."""
        left = []
        for flow in self._departed:
            if flow.in_flight > 0:
                left.append(flow)
            else:
                self._gone.add(flow.tokens.snapshot())
        self._departed = left

    def _tell(self, decision: Decision) -> None:
        for listener in self.listeners:
            try:
                listener(decision)
            except Exception:
                logger.exception("listener_failed", extra={"listener": repr(listener)})

    def _warn(self, decision: Decision, error: str) -> None:
        """Log an error of ours, at most one a second for each kind."""
        key = (decision.chosen, error)
        last, suppressed = self._warned.get(key, (float("-inf"), 0))
        now = decision.time + (decision.duration_s or 0.0)
        if now - last < _WARNING_GAP_S:
            self._warned[key] = (last, suppressed + 1)
            return
        self._warned[key] = (now, 0)
        logger.warning(
            "request_failed",
            extra={
                "request_id": decision.request_id,
                "backend": decision.chosen,
                "status": decision.status,
                "code": error,
                "attempts": decision.attempts,
                "suppressed": suppressed,
            },
        )


def _log_access(decision: Decision) -> None:
    logger.debug(
        "request_done",
        extra={
            "request_id": decision.request_id,
            "path": decision.path,
            "model": decision.model,
            "backend": decision.chosen or None,
            "reason": decision.reason,
            "status": decision.status,
            "ttft_s": decision.ttft_s,
            "duration_s": decision.duration_s,
        },
    )
