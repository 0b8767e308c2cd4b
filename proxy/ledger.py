"""The ledger: one record a request, and the counts behind every metric."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from warmroute.proxy.decision import Decision
from warmroute.proxy.flow import Flow
from warmroute.proxy.histogram import ROUTING_BOUNDS_S, Histogram
from warmroute.proxy.tokens import TokenTotals, classify

REASONS = frozenset({"prefix", "load", "session", "pin", "only", "fallback"})
OTHER = "other"

_MAX_LABELS = 256
_WARNING_GAP_S = 1.0

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
        *("_bytes", "_by_id", "_flows", "_max_bytes", "_max_records", "_ring"),
        *("_warned", "choices", "listeners", "policy_errors", "rejections"),
        *("retries", "routing", "totals"),
    )

    def __init__(
        self, max_records: int = 10_000, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._ring: deque[Decision] = deque()
        self._by_id: dict[str, Decision] = {}
        self._bytes = 0
        self._flows: dict[str | None, dict[str, Flow]] = {OTHER: {}}
        self._warned: dict[tuple[str, str], tuple[float, int]] = {}
        self.choices: dict[tuple[str, str, str], int] = {}
        self.retries: dict[str, int] = {}
        self.rejections: dict[str, int] = {}
        self.policy_errors: dict[str, int] = {}
        self.routing = Histogram(ROUTING_BOUNDS_S)
        self.totals = TokenTotals()
        self.listeners: list[Callable[[Decision], None]] = []

    def know_models(self, names: Iterable[str]) -> None:
        """Give *names* labels of their own; all other models share ``other``.

        Only names that backends announced belong here, never a client's.
        """
        for name in names:
            if name not in self._flows and len(self._flows) < _MAX_LABELS:
                self._flows[name] = {}

    def forget_backend(self, name: str) -> None:
        """Drop the series of a removed backend; the totals keep its tokens."""
        for flows in self._flows.values():
            flows.pop(name, None)
        for key in [key for key in self.choices if key[2] == name]:
            del self.choices[key]

    def open(self, decision: Decision, routing_s: float) -> None:
        """Record a decision that is about to be sent; O(1).

        Args:
            decision: The decision; the ledger sets its ``flow``.
            routing_s: Seconds from the parsed request to the decision.
        """
        self._enter(decision)
        self.routing.observe(routing_s)
        self._keep(decision)

    def reopen(self, decision: Decision, index: int, reason: str) -> None:
        """Send *decision* to candidate *index* instead, because of *reason*."""
        self._leave(decision)
        self.retries[reason] = self.retries.get(reason, 0) + 1
        decision.attempts += 1
        decision.index = index
        decision.chosen = decision.roster.candidate(index)
        decision.predicted_tokens = decision.matched[index]
        self._enter(decision)

    def settle(
        self,
        decision: Decision,
        *,
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
        if ttft_s is not None or 200 <= status < 300:
            self._classify(decision, seen_tokens, prompt_tokens)
        self._count(decision)
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
        """Return the newest record of *request_id* that is still kept; O(1)."""
        return self._by_id.get(request_id)

    def newest(self) -> Iterator[Decision]:
        """Iterate over the records kept, newest first."""
        return reversed(self._ring)

    def flows(self) -> list[Flow]:
        """Return the counters of every (model, backend) met so far."""
        return [flow for flows in self._flows.values() for flow in flows.values()]

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes the records hold."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        return f"<Ledger records={len(self._ring)} bytes={self._bytes}>"

    def _keep(self, decision: Decision) -> None:
        ring, by_id = self._ring, self._by_id
        ring.append(decision)
        by_id[decision.request_id] = decision
        self._bytes += decision.size_bytes
        while len(ring) > self._max_records or self._bytes > self._max_bytes:
            old = ring.popleft()
            self._bytes -= old.size_bytes
            if by_id.get(old.request_id) is old:
                del by_id[old.request_id]

    def _enter(self, decision: Decision) -> None:
        flow = self._flow(decision.model, decision.chosen)
        flow.in_flight += 1
        decision.flow = flow
        reason = decision.reason if decision.reason in REASONS else OTHER
        key = (decision.policy, reason, decision.chosen)
        self.choices[key] = self.choices.get(key, 0) + 1

    def _leave(self, decision: Decision) -> Flow:
        flow = decision.flow or self._flow(decision.model, decision.chosen)
        flow.in_flight -= 1
        return flow

    def _flow(self, model: str | None, backend: str) -> Flow:
        flows = self._flows.get(model)
        if flows is None:
            model = OTHER
            flows = self._flows[OTHER]
        flow = flows.get(backend)
        if flow is None:
            flow = flows[backend] = Flow(model or OTHER, backend)
        return flow

    def _classify(
        self, decision: Decision, seen_tokens: int, prompt_tokens: int | None
    ) -> None:
        ours, predicted = decision.prompt_tokens, decision.predicted_tokens
        best = decision.best_tokens
        reported = decision.cached_tokens
        if prompt_tokens is not None and prompt_tokens != ours:
            decision.prompt_tokens = prompt_tokens
            # Our counts are estimates in the same ratio to the engine's: without
            # the ratio, a wrong length would look like a wrong view.
            if ours > 0 and decision.grade == "estimated":
                predicted = predicted * prompt_tokens // ours
                best = best * prompt_tokens // ours
                seen_tokens = seen_tokens * prompt_tokens // ours
        cached = predicted if reported is None else reported
        decision.tokens = classify(
            decision.prompt_tokens, cached, predicted, best, seen_tokens
        )

    def _count(self, decision: Decision) -> None:
        flow = self._leave(decision)
        status, tokens = decision.status or 0, decision.tokens
        flow.codes[status] = flow.codes.get(status, 0) + 1
        flow.duration.observe(decision.duration_s or 0.0)
        if decision.ttft_s is not None:
            flow.first_token.observe(decision.ttft_s)
        if tokens is None:
            return
        flow.prompt_tokens += decision.prompt_tokens
        flow.predicted_tokens += decision.predicted_tokens
        if decision.cached_tokens is None:
            flow.unreported += 1
        else:
            flow.cached_tokens += decision.cached_tokens
        flow.tokens.add(tokens)
        self.totals.add(tokens)

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
            "backend": decision.chosen,
            "reason": decision.reason,
            "status": decision.status,
            "ttft_s": decision.ttft_s,
            "duration_s": decision.duration_s,
        },
    )
