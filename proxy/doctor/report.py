"""Show what was found: as text to read, or as one JSON object."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from warmroute.proxy.doctor.examination import Examined
from warmroute.proxy.doctor.finding import Finding, Status

_STATUSES: tuple[Status, ...] = ("broken", "warn", "ok", "skipped")
_CHECK_WIDTH = 21


def as_text(examined: Examined) -> str:
    """Return a table: a finding a line, and its remedy on the next."""
    lines: list[str] = []
    for patient in examined.patients:
        lines += [f"{patient.name}  {patient.target}", *_rows(patient.findings), ""]
    lines += ["fleet", *_rows(examined.fleet), ""]
    return "\n".join([*lines, _summary(examined.all())])


def as_object(examined: Examined) -> dict[str, Any]:
    """Return the same for programs; texts may change, the rest stays."""
    return {
        "ok": not examined.is_broken,
        "counts": _counts(examined.all()),
        "backends": [
            {
                "name": patient.name,
                "url": str(patient.target),
                "engine": patient.adapter.name if patient.is_good("engine") else None,
                "version": patient.facts.version,
                "checks": _objects(patient.findings),
            }
            for patient in examined.patients
        ],
        "fleet": {"checks": _objects(examined.fleet)},
    }


def _rows(findings: Mapping[str, Finding]) -> Iterable[str]:
    for check, one in findings.items():
        if one.blocker is None:
            yield f"  {one.status:8} {check:{_CHECK_WIDTH}} {one.found}"
        if one.remedy:
            yield f"  {'':8} {'':{_CHECK_WIDTH}} -> {one.remedy}"
    blocked = Counter(one.blocker for one in findings.values() if one.blocker)
    for blocker, count in blocked.items():
        noun, verb = ("check", "needs") if count == 1 else ("checks", "need")
        text = f"{count} further {noun}"
        yield f"  {'skipped':8} {text:{_CHECK_WIDTH}} {verb} {blocker!r}"


def _objects(findings: Mapping[str, Finding]) -> list[dict[str, str]]:
    return [
        {
            "check": check,
            "status": one.status,
            "found": one.found,
            "remedy": one.remedy,
        }
        for check, one in findings.items()
    ]


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    counts = Counter(one.status for one in findings)
    return {status: counts[status] for status in _STATUSES}


def _summary(findings: Iterable[Finding]) -> str:
    counts = _counts(findings)
    shown = ", ".join(f"{count} {status}" for status, count in counts.items())
    verdict = "routing relies on what is broken" if counts["broken"] else "it can route"
    return f"{shown}: {verdict}"
