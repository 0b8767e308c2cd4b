"""What is wrong or in doubt, in words: the truth loop's findings, with remedies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_MIN_TOKENS: Final = 20_000
_UNPREDICTED_SHARE: Final = 0.05
_PAID_TWICE_SHARE: Final = 0.2
_FULL_SHARE: Final = 0.97
_LATE_S: Final = 2.0
_BAD: Final = ("none_up", "backend_down", "breaker_open")

Facts = Mapping[str, Any]


def advise(state: Facts) -> list[dict[str, Any]]:
    """Return the warnings of a state: each with backend, level, code and sentence.

    ``level`` is ``bad`` where requests suffer now, else ``doubt``.
    """
    found = [*_fleet(state["backends"]), *_sums(state), *_index(state["index"])]
    for backend in state["backends"]:
        found += _view(backend["name"], backend["view"], backend["state"])
    return found


def _warning(code: str, sentence: str, backend: str | None = None) -> dict[str, Any]:
    level = "bad" if code in _BAD else "doubt"
    return {"backend": backend, "level": level, "code": code, "sentence": sentence}


def _fleet(backends: Sequence[Facts]) -> Iterator[dict[str, Any]]:
    if not any(one["state"] == "up" for one in backends):
        yield _warning("none_up", "no backend is up: requests are refused with 503")
    for one in backends:
        if one["state"] == "down":
            yield _warning(
                "backend_down",
                f"{one['name']} does not answer its health probes and gets no requests",
                one["name"],
            )
        elif one["state"] == "up" and one["breaker"] in _BREAKER:
            sentence = f"{one['name']} {_BREAKER[one['breaker']]}"
            yield _warning(f"breaker_{one['breaker']}", sentence, one["name"])


_BREAKER: Final = {
    "open": "answers its health probes but failed requests in a row: its breaker is "
    "open, and it gets none while another backend can serve them",
    "half_open": "failed requests in a row: its breaker is half open, and the next "
    "request to it is a trial",
}


def _view(name: str, view: Facts, state: str) -> Iterator[dict[str, Any]]:
    if state != "up":
        return
    if view["source"] == "none":
        yield _warning(
            "no_view",
            f"{name} does not report cached tokens, so nothing is known of its cache "
            "and it is chosen by load alone; `warmroute doctor` names the flag",
            name,
        )
    status, discount = view.get("status"), view.get("discount", 1.0)
    if discount < 1.0:
        yield _warning(
            "over_promised",
            f"{name} had less cached than it announced: its promises count "
            f"{discount:.0%} until it has been right for a while",
            name,
        )
    if status in _STATUS:
        yield _warning(f"events_{status}", f"{name} {_STATUS[status]}", name)
    if "not_followed" in view:
        yield _warning(
            "events_not_followed",
            f"{name} publishes KV events that are not followed, so that its view is "
            f"only what was sent to it: {view['not_followed']}",
            name,
        )
    lag_s = view["lag_s"]
    if lag_s is not None and lag_s > _LATE_S:
        yield _warning(
            "events_late",
            f"the KV events of {name} arrive {lag_s:.1f} s late; "
            "check its clock with `warmroute doctor`, then its load",
            name,
        )


_STATUS: Final = {
    "catching_up": "has published more than was heard: its view is being made anew",
    "degraded": "published events that were not heard and cannot be had again: its "
    "view misses blocks until they are announced anew; give the engine a replay "
    "endpoint, and one that reaches far enough back",
    "silent": "was subscribed to and has not published an event yet: "
    "either it is idle, or its events go elsewhere",
}


def _sums(state: Facts) -> Iterator[dict[str, Any]]:
    tokens = state["tokens"]
    prompt = tokens["prompt"]
    if prompt < _MIN_TOKENS:
        return
    if tokens["unpredicted"] > _UNPREDICTED_SHARE * prompt:
        share = tokens["unpredicted"] / prompt
        yield _warning(
            "unpredicted",
            f"{share:.0%} of the prompt tokens were promised by a view and computed "
            "all the same: some view is wrong; `warmroute doctor` examines them",
        )
    if state["paid_twice_ratio"] > _PAID_TWICE_SHARE:
        reason = max(("evicted", "elsewhere", "unpredicted"), key=tokens.__getitem__)
        yield _warning(
            "paid_twice",
            f"{state['paid_twice_ratio']:.0%} of the prompt tokens were paid twice, "
            f"most of them {_REASONS[reason]}",
        )


_REASONS: Final = {
    "evicted": "because they had been evicted: the caches are too small for the work",
    "elsewhere": "because another backend had them: the load did not allow to go there",
    "unpredicted": "because the view was wrong",
}


def _index(index: Facts) -> Iterator[dict[str, Any]]:
    if index["bytes"] > _FULL_SHARE * index["cap_bytes"]:
        yield _warning(
            "index_full",
            "the prefix index is full and forgets the least used prefixes; "
            "raise index.max_bytes to know more of the caches",
        )
