"""Marks of a request that was not sampled, made once it is known to be unusual.

Few are, so the others leave none. What is gone by then is left out: how long the choice
took, and whether the view was trusted more at the dispatch.
"""

from warmroute.proxy.routing import Routing
from warmroute.proxy.telemetry.tracer import HeadFacts, Tracer


def trace_late(
    tracer: Tracer,
    head: HeadFacts,
    peer: bytes,
    routing: Routing,
    arrived_at: float,
    sent_at: float | None,
    ttft_s: float | None,
) -> None:
    """Give *routing* the trace that it would have by now, if it may be kept.

    Args:
        tracer: Judges the trace at its end.
        head: The client's head.
        peer: The client's address.
        routing: Has none.
        arrived_at: When the request had arrived, in monotonic seconds.
        sent_at: When it was sent; None: it was not.
        ttft_s: Seconds from its arrival to the first token, if there was one.
    """
    routing.trace = trace = tracer.start_late(head, arrived_at, peer)
    if trace is None:
        return
    routed_at = routing.query.now
    size = routing.backend.block_size
    trace.route(routing.decision, routed_at, routed_at, block_size=size)
    trace.prompt_tokens = routing.prompt.num_tokens
    if sent_at is not None:
        routing.trace_attempt(sent_at)
    if ttft_s is not None:
        trace.first_token(arrived_at + ttft_s)
