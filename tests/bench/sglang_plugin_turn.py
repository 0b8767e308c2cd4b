"""What the SGLang plugin costs a turn of the scheduler's loop while nobody calls.

Usage: ``python tests/bench/sglang_plugin_turn.py``. Needs no engine: the turn ends at a
socket on which there is nothing.
"""

import tempfile
import time
from pathlib import Path

from warmroute.adapters.kv_plugin.verbs import DeafControl
from warmroute.adapters.sglang.plugin.desk import Desk
from warmroute.adapters.sglang.plugin.entry import take_turn
from warmroute.adapters.sglang.plugin.names import CONTROL

RUNS = 20
TURNS = 20_000


class Scheduler:
    """Stands for SGLang's, which the plugin has been put into."""


def main() -> None:
    """Print the least CPU time of a turn."""
    with tempfile.TemporaryDirectory() as folder:
        scheduler = Scheduler()
        desk = Desk(DeafControl("nothing"), str(Path(folder) / "socket"), None)
        setattr(scheduler, CONTROL, desk)
        best_s = min(_run(scheduler) for _ in range(RUNS))
    print(f"{best_s * 1e6:.1f} us a turn (least of {RUNS} runs of {TURNS} turns)")


def _run(scheduler: Scheduler) -> float:
    start = time.process_time()
    for _ in range(TURNS):
        take_turn(None, scheduler, [])
    return (time.process_time() - start) / TURNS


if __name__ == "__main__":
    main()
