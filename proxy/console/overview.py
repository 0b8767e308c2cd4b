"""The fleet on one page, what is paid twice first."""

from typing import Final

from warmroute.proxy.console.answers import Backend, State
from warmroute.proxy.console.table import (
    count,
    milliseconds,
    printable,
    seconds,
    share,
    size,
    table,
)

CLASSES: Final = ("hit", "cold", "evicted", "elsewhere", "unpredicted")
PAID_TWICE: Final = CLASSES[2:]

_HEADS: Final = (
    *("backend", "engine", "state", "view", "lag", "blocks", "requests"),
    *("decodes", "to prefill", "prefill/s", "token every"),
)
_MAX_SENTENCE: Final = 600


def overview(state: State) -> str:
    """Return the fleet as text."""
    parts = [
        _paid(state),
        _classes(state),
        "",
        _fleet(state.backends),
        "",
        _foot(state),
    ]
    if state.cache_killers:
        parts += ["", "what breaks prefixes:"]
        for killer in state.cache_killers:
            parts.append(f"  {printable(killer.sentence, _MAX_SENTENCE)}")
            if killer.example:
                parts.append(f"    {printable(killer.example, _MAX_SENTENCE)}")
    return "\n".join(parts)


def num_paid_twice(tokens: dict[str, int]) -> int:
    """Return the prompt tokens that were computed for a second time."""
    return sum(tokens.get(kind, 0) for kind in PAID_TWICE)


def _paid(state: State) -> str:
    twice, prompt = num_paid_twice(state.tokens), state.tokens.get("prompt", 0)
    figures = f"{count(twice)} of {count(prompt)} prompt tokens"
    return f"paid twice  {share(state.paid_twice_ratio)}  ({figures})"


def _classes(state: State) -> str:
    prompt = state.tokens.get("prompt", 0)
    shares = (
        f"{kind} {share(state.tokens.get(kind, 0) / prompt if prompt else 0.0)}"
        for kind in CLASSES
    )
    return "            " + "  ".join(shares)


def _fleet(backends: list[Backend]) -> str:
    return table(_HEADS, [_row(one) for one in backends], texts=4)


def _row(one: Backend) -> list[str]:
    rate = one.learned.prefill_tokens_per_s
    return [
        one.name,
        one.engine,
        _standing(one),
        one.view.source,
        milliseconds(one.view.lag_s),
        "-" if one.state == "down" else count(one.view.blocks),
        count(one.load.requests),
        count(one.load.decodes),
        count(one.load.prefill_tokens),
        "-" if rate is None else count(round(rate)),
        milliseconds(one.learned.itl_s),
    ]


def _standing(one: Backend) -> str:
    """Return the state, and the breaker unless it is closed, as it mostly is."""
    if one.breaker == "closed":
        return one.state
    return f"{one.state}, breaker {one.breaker.replace('_', ' ')}"


def _foot(state: State) -> str:
    index = state.index
    return (
        f"index {size(index.bytes)} of {size(index.cap_bytes)}, "
        f"{count(index.blocks)} blocks; policy {printable(state.policy)}; "
        f"up {seconds(state.uptime_s)}; warmroute {printable(state.version)}"
    )
