"""A request on its way through a tracer, with plain facts in place of a proxy."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from warmroute.policies.kv.capacity import Capacity
from warmroute.proxy.http.watch import Usage
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.prompt.prompt import Prompt
from warmroute.proxy.telemetry import Tracer
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.telemetry.sampling import Sampler
from warmroute.proxy.telemetry.span import Span
from warmroute.proxy.telemetry.span_tree import SpanTree
from warmroute.proxy.telemetry.unusual import Unusual
from warmroute.proxy.view.mirror import Mirror

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"
START_NS = 1_700_000_000_000_000_000
TREE = SpanTree("http", "127.0.0.1", 8080, prompts=False)
PROMPT = Prompt("chat", "smol", stream=True, max_tokens=32)
BODY = b'{"temperature": 0.5, "top_p": 1, "messages": [{"content": "secret"}]}'
ENDING = b"""\
data: {"model": "smol-1", "choices": [{"finish_reason": "stop"}]}

data: {"model": "smol-1", "choices": [], "usage": {"prompt_tokens": 100}}

data: [DONE]

"""


class FakeHead:
    """A request head with the fields a trace reads."""

    def __init__(
        self,
        path: str = "/v1/chat/completions",
        method: bytes = b"POST",
        **fields: str,
    ) -> None:
        self.method = method
        self.path = path
        self.version = "1.1"
        self.fields = {
            name.replace("_", "-").encode(): value.encode()
            for name, value in fields.items()
        }


class FakeSink:
    """Keep the spans of kept traces."""

    def __init__(self) -> None:
        self.traces: list[Sequence[Span]] = []

    def write(self, trace: RequestTrace, kept: str, wall_offset_ns: int) -> None:
        self.traces.append(TREE.spans(trace, kept))

    async def close(self, timeout_s: float) -> bool:
        return True


def decide() -> Decision:
    roster = Roster(["a", "b"], ["up", "up"], ["events", "mirror"], [0, 1])
    costs = [(0.0, 0.1, 0.2, 0.3), (0.0, 0.2, 0.3, 0.5)]
    return Decision(
        *("r1", 1000.0, "/v1/chat/completions", "smol", "exact", 100),
        *("expected_ttft", roster, [48, 64], 0, "prefix", costs),
    )


def mirror() -> Mirror:
    return Mirror("a", 0, 16, "events", Capacity(None))


def backend(name: str = "a") -> Any:
    facts = {"name": name, "engine": "vllm", "host": "10.0.0.1", "port": 8101}
    return SimpleNamespace(**facts)


def attempt(
    trace: RequestTrace, now: float, name: str = "a", view: Mirror | None = None
) -> bytes | None:
    number = len(trace.attempts) + 1
    return trace.attempt(backend(name), PROMPT, "s-1", view, number, now)


def play(
    tracer: Tracer,
    head: FakeHead | None = None,
    *,
    status: int = 200,
    end_s: float = 11.0,
    cached_tokens: int = 32,
    error: str | None = None,
    view: Mirror | None = None,
    num_lost: int = 0,
) -> RequestTrace:
    """Run one request through *tracer*; a good one, if nothing else is said."""
    ledger, decision = Ledger(), decide()
    asked = (head or FakeHead(), 10.0, b"192.0.2.7")
    trace = tracer.start(*asked) or tracer.start_late(*asked)
    assert trace is not None
    ledger.open(decision, 0.0)
    trace.route(decision, 10.001, 10.002, block_size=16)
    for _ in range(num_lost):
        attempt(trace, 10.002, "b")
        trace.attempt_failed("refused", 10.002)
    attempt(trace, 10.002, view=view)
    trace.first_token(10.252)
    ledger.settle(
        decision,
        status=status,
        duration_s=1.0,
        prompt_tokens=100,
        cached_tokens=cached_tokens,
        output_tokens=7,
        ttft_s=0.25,
    )
    usage = Usage(100, cached_tokens, 7, "chatcmpl-r1")
    usage.ending = ENDING
    trace.end(end_s, status, error, usage, BODY)
    return trace


def fake_tracer(
    sample: float = 1.0, unusual: Unusual | None = None
) -> tuple[Tracer, FakeSink]:
    sink = FakeSink()
    tracer = Tracer(
        sink,
        Sampler(sample),
        unusual,
        clock=lambda: 11.0,
        wall_ns=lambda: START_NS,
    )
    return tracer, sink
