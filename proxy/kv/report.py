"""The answers of KV control as a table for people."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from warmroute.proxy.console.table import size

_Row = list[str]

_SIZES = ("blocks", "gpu", "host", "in use", "tokens", "copied")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return columns as wide as they need, two spaces apart."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def report(verb: str, results: Mapping[str, object]) -> str:
    """Return what each backend answered to a verb; its errors stand below."""
    answers = {name: one for name, one in results.items() if isinstance(one, dict)}
    good = {name: one for name, one in answers.items() if "error" not in one}
    parts = []
    if good:
        rows = {name: _figures(verb, answer) for name, answer in good.items()}
        head = list(next(iter(rows.values())))
        parts.append(
            table(
                ["backend", *head],
                (
                    [name, *(row.get(key, "-") for key in head)]
                    for name, row in rows.items()
                ),
            )
        )
    parts += [
        f"{name}: {one['error'].get('message')}"
        for name, one in answers.items()
        if "error" in one
    ]
    return "\n".join(parts)


def came_to_nothing(verb: str, results: Mapping[str, object]) -> bool:
    """Tell whether nothing that was asked for could be done.

    A flush is told of one backend, that dropped nothing and is not empty; what names
    blocks of all of them, since most hold a prefix on some backends only.
    """
    answers = [one for one in results.values() if isinstance(one, dict)]
    if verb == "flush":
        return any(not (one.get("flushed") or one.get("dropped")) for one in answers)
    done = {"evict": "evicted", "retain": "retained"}.get(verb)
    return bool(done and answers) and not any(one.get(done) for one in answers)


def stats(state: Mapping[str, object], results: Mapping[str, object]) -> str:
    """Return the caches of the fleet, and what their engines cannot be told."""
    rows, notes = [], []
    backends = state.get("backends")
    for backend in backends if isinstance(backends, list) else ():
        name = str(backend["name"])
        if name not in results:
            continue
        rows.append([name, backend["engine"], backend["state"], *_sizes(results[name])])
        notes += _lacks(name, backend.get("kv") or {})
    head = ["backend", "engine", "state", *_SIZES]
    return "\n".join([table(head, rows), *notes])


def _sizes(answer: object) -> _Row:
    if not isinstance(answer, dict) or "blocks" not in answer:
        return ["-"] * len(_SIZES)
    figures = _figures("snapshot", answer)
    return [figures[key] for key in _SIZES]


def _lacks(name: str, kv: Mapping[str, object]) -> list[str]:
    """Return a line for each reason why verbs are not to be had."""
    reasons: dict[str, list[str]] = {}
    for verb, answer in kv.items():
        if answer is not True:
            reasons.setdefault(str(answer), []).append(verb)
    return [f"{name}: no {', '.join(verbs)}: {why}" for why, verbs in reasons.items()]


def _figures(verb: str, answer: Mapping[str, object]) -> dict[str, str]:
    blocks = answer.get("blocks")
    if verb == "snapshot" and isinstance(blocks, list):
        hashes = {one["hash"] for one in blocks}
        block_size = answer.get("block_size")
        copied = answer.get("copied_bytes")
        return {
            "blocks": str(len(hashes)),
            "gpu": str(sum(one["tier"] == "gpu" for one in blocks)),
            "host": str(sum(one["tier"] == "host" for one in blocks)),
            "in use": str(sum(one["refs"] > 0 for one in blocks)),
            "tokens": _text(_times(len(hashes), block_size)),
            "copied": size(copied) if isinstance(copied, int) else "-",
            "seq": _text(answer.get("seq")),
        }
    return {key: _text(value) for key, value in answer.items()}


def _times(count: int, block_size: object) -> int | None:
    return count * block_size if isinstance(block_size, int) else None


def _number(blocks: Sequence[object]) -> str:
    """Return how many *blocks* there are, and for what reasons where they tell."""
    reasons = Counter(
        str(one["reason"])
        for one in blocks
        if isinstance(one, dict) and "reason" in one
    )
    told = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    return f"{len(blocks)} ({told})" if told else str(len(blocks))


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        if value and all(isinstance(one, str) for one in value):
            return ",".join(value)
        return _number(value)
    if isinstance(value, dict):
        return ",".join(f"{key}={one}" for key, one in value.items()) or "-"
    return str(value)
