"""The cost of a routing decision: view, policy and record, for fleets of any size."""

import json
from dataclasses import dataclass
from random import Random
from typing import Final

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import build
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.bench.timing import cpu_us
from warmroute.proxy.config.backend import BackendConfig
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.prompt import PromptReader
from warmroute.proxy.router import Router
from warmroute.proxy.view import View

SIZES: Final = (1, 8, 64, 500)

_BASE_US: Final = 30.0
_BACKEND_US: Final = 1.0
_PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class DecisionCost:
    """What one decision takes.

    Attributes:
        backends: Candidates.
        us: Microseconds of CPU.
        allowed_us: 30 us and 1 us a backend.
    """

    backends: int
    us: float
    allowed_us: float


def decision_costs(policy: str, reps: int) -> list[DecisionCost]:
    """Measure *policy* on fleets of 1, 8, 64 and 500 busy backends.

    Raises:
        PolicyError: There is no such policy.
    """
    found = []
    for size in SIZES:
        router, head, body = _busy_router(policy, size)
        prompt = router.read(head, body)
        us = cpu_us(lambda: router.plan(head, prompt, 12.0), 4000 // size + 50, reps)  # noqa: B023
        found.append(DecisionCost(size, us, _BASE_US + _BACKEND_US * size))
    return found


def _busy_router(policy: str, size: int) -> tuple[Router, RequestHead, bytes]:
    """Make a router whose backends all decode, prefill, and hold a part of a chat."""
    rng, load = Random(size), FleetLoad()
    configs = [
        BackendConfig(name=f"b{at}", url=f"http://127.0.0.1:{1024 + at}", engine="vllm")
        for at in range(size)
    ]
    fleet = Fleet(configs, HealthConfig(), load)
    view = View(PrefixIndex())
    for backend in fleet.backends.values():
        view.add_backend(backend.name, 16)
    router = Router(
        fleet,
        view,
        load,
        build(policy, None, rng),
        PromptReader([]),
        Ledger(),
        clock=lambda: 12.0,
    )
    head = RequestHead(
        b"POST",
        _PATH.encode(),
        "1.1",
        [(b"host", b"bench"), (b"content-type", b"application/json")],
    )
    for number in range(4 * size):
        routing = router.route(head, router.read(head, _chat(number % 7)), 10.0)
        if number % 2:
            routing.first_token(10.0 + rng.random())
    return router, head, _chat(1)


def _chat(number: int) -> bytes:
    """Return the body of a chat of about 1 KB; equal numbers are equal chats."""
    text = " ".join(f"word-{number}-{at}" for at in range(80))
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()
