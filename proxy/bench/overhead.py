"""What warmroute costs on this machine, in one run."""

import asyncio
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Any

from warmroute.proxy import router
from warmroute.proxy.bench.decisions import DecisionCost, decision_costs
from warmroute.proxy.bench.ingest import IngestCost, ingest_cost
from warmroute.proxy.bench.relaying import RelayCost, relay_cost


@dataclass(frozen=True, slots=True)
class Overhead:
    """The figures.

    Attributes:
        policy: That was measured.
        decisions: By size of the fleet.
        ingest: Of the prefix index.
        relay: Of a proxied request.
    """

    policy: str
    decisions: list[DecisionCost]
    ingest: IngestCost
    relay: RelayCost

    def as_object(self) -> dict[str, Any]:
        """Return the figures for ``--json``."""
        ingest, relay = self.ingest, self.relay
        return {
            "compiled": is_compiled(),
            "uvloop": find_spec("uvloop") is not None,
            "policy": self.policy,
            "decision": [
                {
                    "backends": one.backends,
                    "us": round(one.us, 2),
                    "allowed_us": one.allowed_us,
                    "ratio": round(one.us / one.allowed_us, 3),
                }
                for one in self.decisions
            ],
            "index_block": {
                "us": round(ingest.us, 4),
                "dict_us": round(ingest.dict_us, 4),
                "ratio": round(ingest.us / ingest.dict_us, 2),
            },
            "request": {
                "us": round(relay.us, 1),
                "bare_relay_us": round(relay.relay_us, 1),
                "ratio": round(relay.us / relay.relay_us, 2),
            },
        }

    def as_text(self) -> str:
        """Return the figures as a table."""
        told = self.as_object()
        compiled = "compiled" if told["compiled"] else "not compiled"
        uvloop = "uvloop" if told["uvloop"] else "no uvloop"
        lines = [f"warmroute, {compiled}, {uvloop}; microseconds of CPU", ""]
        lines.append(f"{'decision of ' + self.policy:<36}{'us':>9}{'of allowed':>12}")
        for one in told["decision"]:
            name = f"  {one['backends']} backends"
            lines.append(f"{name:<36}{one['us']:>9.1f}{one['ratio']:>12.0%}")
        lines += ["", f"{'':<36}{'us':>9}{'against':>12}{'ratio':>8}"]
        block, request = told["index_block"], told["request"]
        rows = (
            ("block into the index, a dict", block, "dict_us"),
            ("request of 1 KB, a bare relay", request, "bare_relay_us"),
        )
        for name, row, other in rows:
            figures = f"{row['us']:>9.3f}{row[other]:>12.3f}{row['ratio']:>8.2f}"
            lines.append(f"{name:<36}{figures}")
        return "\n".join(lines)


def is_compiled() -> bool:
    """Tell whether the request path is compiled."""
    return router.__file__.endswith(tuple(EXTENSION_SUFFIXES))


def measure_overhead(policy: str, reps: int) -> Overhead:
    """Measure everything; some seconds.

    Raises:
        PolicyError: There is no such policy.
        BenchError: A child process failed.
    """
    return Overhead(
        policy,
        decision_costs(policy, reps),
        ingest_cost(reps),
        asyncio.run(relay_cost(reps)),
    )
