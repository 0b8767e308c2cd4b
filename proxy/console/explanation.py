"""One decision in plain words, with its table."""

from datetime import UTC, datetime
from typing import Final

from warmroute.proxy.console.answers import Candidate, Cost, Decision, Outcome
from warmroute.proxy.console.table import count, printable, seconds, table

_REASONS: Final = {
    "load": "because it had the least to do",
    "session": "because its session is at home there",
    "pin": "because only it knows what the request continues",
    "only": "because no other backend could take it",
    "fallback": "because the policy failed, and it had the least to do",
    "round_robin": "because it was next in turn",
    "random": "by chance",
}
_DIFFERENCES: Final = {
    "evicted": "evicted after the decision",
    "not_announced": "another request had only begun to compute them",
    "came_later": "more came meanwhile",
    "unexplained": "the view was wrong",
}
_CLIENT_GONE: Final = 499
_HEADS: Final = (
    *("", "backend", "state", "view", "cached", "to compute"),
    *("wait", "miss", "decode", "total"),
)


def explain(decision: Decision) -> str:
    """Return the decision as a heading, a sentence, a table, and its outcome."""
    parts = [
        _heading(decision),
        _sentence(decision),
        "",
        _candidates(decision),
        "",
        _ending(decision),
    ]
    if decision.shadow is not None:
        shadow = decision.shadow
        chosen = printable(shadow.chosen)
        would = "also" if shadow.chosen == decision.chosen else "instead"
        parts.append(
            f"{printable(shadow.policy)} would have sent it to {chosen} {would}"
        )
    return "\n".join(parts)


def _heading(one: Decision) -> str:
    when = datetime.fromtimestamp(one.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    prompt = f"{count(one.prompt_tokens)} prompt tokens ({one.grade})"
    if one.grade == "none":
        prompt = "no prompt"
    model = printable(one.model or "no model")
    return f"{printable(one.request_id, 128)}  {model}  {prompt}  {when}"


def _sentence(one: Decision) -> str:
    if one.chosen is None:
        return "sent nowhere: the queue refused it, or its client left"
    parts = [f"sent to {printable(one.chosen)} {_why(one)}"]
    rivals = [other for other in _able(one) if other.backend != one.chosen]
    rival = min(rivals, key=_price, default=None)
    if rival is not None:
        if one.grade != "none":
            parts.append(_had(rival, one.prompt_tokens))
        prices = _prices(one, rival)
        if prices:
            parts.append(prices)
    parts.append(_report(one.outcome) if one.outcome else "it still runs")
    return "; ".join(part for part in parts if part)


def _why(one: Decision) -> str:
    if one.attempts > 1:
        return f"at attempt {one.attempts}, after a backend had given no answer"
    mine = _chosen(one)
    cached = mine.matched_tokens.total if mine else 0
    held = f"{count(cached)} of {count(one.prompt_tokens)} prompt tokens"
    if one.reason == "prefix":
        return f"because {held} were cached there"
    why = _REASONS.get(one.reason, f"({printable(one.reason)})")
    return f"{why}; {held} were cached there" if cached else why


def _had(rival: Candidate, prompt_tokens: int) -> str:
    cached = rival.matched_tokens.total
    name = printable(rival.backend)
    if not cached:
        return f"{name} would have had to compute all"
    return f"{name} would have had to compute {count(max(0, prompt_tokens - cached))}"


def _prices(one: Decision, rival: Candidate) -> str:
    mine = _chosen(one)
    ours = None if mine is None else mine.cost.total_s
    theirs = rival.cost.total_s
    if ours is None or theirs is None:
        return ""
    return f"expected cost {seconds(ours)} against {seconds(theirs)}"


def _report(end: Outcome) -> str:
    if end.tokens is None:
        return _unserved(end)
    if end.cached_tokens is None:
        return "the engine did not report what it had cached"
    text = f"the engine reported {count(end.cached_tokens)}"
    off = end.cached_tokens - end.predicted_tokens
    if not off:
        return f"{text}: as predicted"
    word = "more" if off > 0 else "fewer"
    why = _DIFFERENCES.get(end.difference or "")
    because = f" ({why})" if why else ""
    return f"{text}: {count(abs(off))} {word} than predicted{because}"


def _unserved(end: Outcome) -> str:
    if end.status == _CLIENT_GONE:
        return "its client left first"
    if end.error is not None:
        return "no engine gave a whole answer"
    verb = "failed:" if end.status >= 500 else "refused it:"
    return f"the engine {verb if end.status >= 400 else 'answered'} {end.status}"


def _candidates(one: Decision) -> str:
    able = {candidate.backend for candidate in _able(one)}
    rows = []
    for candidate in one.candidates:
        cached = candidate.matched_tokens.total
        is_able = candidate.backend in able
        rows.append(
            [
                ">" if candidate.backend == one.chosen else "",
                candidate.backend,
                candidate.state,
                candidate.view,
                count(cached) if is_able else "-",
                count(max(0, one.prompt_tokens - cached)) if is_able else "-",
                *_terms(candidate.cost),
            ]
        )
    return table(_HEADS, rows, texts=4)


def _terms(cost: Cost) -> list[str]:
    terms = (cost.wait_s, cost.miss_s, cost.decode_s, cost.total_s)
    return [seconds(term) for term in terms]


def _ending(one: Decision) -> str:
    end = one.outcome
    if end is None:
        return "outcome: none yet"
    parts = [str(end.status)]
    if end.error is not None:
        parts.append(printable(end.error))
    if end.ttft_s is not None:
        parts.append(f"first token after {seconds(end.ttft_s)}")
    made = "" if end.output_tokens is None else f"{count(end.output_tokens)} tokens "
    parts.append(f"{made}in {seconds(end.duration_s)}")
    shown = {kind: num for kind, num in (end.tokens or {}).items() if num}
    if shown:
        classes = ", ".join(f"{count(num)} {printable(k)}" for k, num in shown.items())
        parts.append(f"prompt tokens: {classes}")
    return "outcome: " + "; ".join(parts)


def _able(one: Decision) -> list[Candidate]:
    """List those that the policy could choose from, as far as the record tells.

    Not all that are up: one may not serve the model. A policy that prices has priced
    every candidate; where nothing has a price, only a match proves one.
    """
    priced = [each for each in one.candidates if each.cost.total_s is not None]
    return priced or [
        each
        for each in one.candidates
        if each.matched_tokens.total or each.backend == one.chosen
    ]


def _chosen(one: Decision) -> Candidate | None:
    for candidate in one.candidates:
        if candidate.backend == one.chosen:
            return candidate
    return None


def _price(candidate: Candidate) -> tuple[float, int]:
    total = candidate.cost.total_s
    cached = candidate.matched_tokens.total
    return (float("inf") if total is None else total, -cached)
