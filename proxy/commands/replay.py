"""``warmroute replay``: what each policy would have made of recorded traffic."""

import argparse
import json
from typing import TYPE_CHECKING

from warmroute.policies.errors import ConfigError, PolicyError
from warmroute.proxy.demo.progress import step_on_terminal

if TYPE_CHECKING:
    from warmroute.proxy.replay.comparison import Progress
    from warmroute.proxy.replay.setting import Setting
    from warmroute.proxy.replay.trace import Trace
    from warmroute.proxy.replay.what_if import Answer

_POLICIES = "round_robin,least_requests,expected_ttft"


class ReplayCommand:
    """Replay a trace under policies, on simulated time."""

    name = "replay"
    help = "replay a trace under several policies, and compare"
    description = (
        "Play a recorded trace to a simulated fleet, once for each policy, and print "
        "what users would have waited and what was computed twice. Policies, load and "
        "token classes are those of `warmroute serve`; beside them stands what no "
        "router can beat. TRACE is a file, plain, .gz or .zst: Mooncake's JSON lines, "
        "sessions of agents, warmroute's access records, Azure's CSV; or `rag:`, a "
        "made load of retrieval."
    )
    examples = """examples:
  warmroute replay conversation_trace.jsonl
  warmroute replay trace.jsonl.zst --backends 4 --capacity 3M --prefill-rate 20k
  warmroute replay trace.jsonl.gz --policy round_robin,expected_ttft --jitter 3 \\
    --seeds 4 --json
  warmroute replay sessions.jsonl.zst --engine-model batching --sessions 56 \\
    --policy weighted_scores,expected_ttft --report report.html
  warmroute replay rag:k=8,rate=6 --engine-model batching --what-if 0.95

exit codes: 0 replayed, 1 something failed, 2 unknown policy, bad option or trace
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        from warmroute.proxy.replay import options

        add = parser.add_argument
        add("trace", metavar="TRACE", help="the trace")
        add(
            "--policy",
            default=_POLICIES,
            metavar="P[,P...]",
            help=f"what to compare ({_POLICIES})",
        )
        options.add_engines(parser)
        options.add_playing(parser)
        options.add_sessions(parser)
        options.add_troubles(parser)
        options.add_objectives(parser)
        add("--report", metavar="FILE", help="write a page with plots to FILE as well")
        add("--json", action="store_true", help="print JSON, not a table")

    def run(self, options: argparse.Namespace) -> int:
        """Replay, print what came of it, and return the exit code."""
        from warmroute.proxy.replay.comparison import Comparison
        from warmroute.proxy.replay.page import write_page
        from warmroute.proxy.replay.report import Report

        names = _known_policies(options.policy)
        setting = _setting(options)
        trace = _trace(options, setting)
        with step_on_terminal("replaying") as step:
            count = None if step is None else step.count
            routed, oracles = Comparison(trace, setting, count).run(names)
            answer = _what_if(options, trace, setting, names[-1], count)
        report = Report(trace, setting, routed, oracles, answer)
        if options.report is not None:
            write_page(options.report, report)
        print(json.dumps(report.as_object()) if options.json else report.as_text())
        return 0


def _known_policies(text: str) -> list[str]:
    """Split *text* into names, each once, and have every policy built."""
    from warmroute.proxy.replay.fleets import build_policy

    names = list(dict.fromkeys(text.split(",")))
    try:
        for name in names:
            build_policy(name, 0)
    except PolicyError as error:
        raise ConfigError(f"--policy: {error}") from error
    return names


def _setting(options: argparse.Namespace) -> "Setting":
    from warmroute.proxy.replay.engine_constants import choose_constants
    from warmroute.proxy.replay.options import by_engine
    from warmroute.proxy.replay.routed import backend_names
    from warmroute.proxy.replay.setting import Setting
    from warmroute.proxy.replay.view_grade import read_view

    _check_model(options)
    names = backend_names(options.backends)
    batching = None
    capacity, rate = options.capacity, options.prefill_rate or 8000.0
    if options.engine_model == "batching":
        batching = choose_constants(options.constants, options.constant or ())
        capacity = batching.kv_tokens if capacity is None else max(1, capacity)
        rate = 1 / batching.prefill_s(1)
    setting = Setting(
        options.backends,
        10**6 if capacity is None else capacity,
        rate,
        options.speed,
        options.jitter,
        options.seeds,
        batching,
        options.sessions,
        options.ttft_slo,
        options.tpot_slo,
        read_view(options.view),
        by_engine("--slow", options.slow, names),
        by_engine("--misjudge", options.misjudge, names),
        by_engine("--die", options.die, names),
        by_engine("--mislearn", options.mislearn, names),
        options.queue,
    )
    if len(setting.dies_at) == setting.backends:
        raise ConfigError("--die: every engine dies (needed: one that stays)")
    return setting


def _check_model(options: argparse.Namespace) -> None:
    """Refuse flags of the other engine model, which would go unheard."""
    if options.engine_model == "batching":
        wrong = {"--prefill-rate": options.prefill_rate}
    else:
        wrong = {
            "--constants": options.constants,
            "--constant": options.constant,
            "--die": options.die,
            "--mislearn": options.mislearn,
        }
    for flag, value in wrong.items():
        if value is not None:
            raise ConfigError(
                f"{flag}: not known to --engine-model {options.engine_model}"
            )


def _trace(options: argparse.Namespace, setting: "Setting") -> "Trace":
    from warmroute.proxy.replay.traces import read_trace

    if setting.batching is None:
        return read_trace(options.trace, options.max_prompt, options.max_think)
    most = min(options.max_prompt, setting.capacity_tokens)
    trace = read_trace(options.trace, most, options.max_think)
    return trace.within(setting.capacity_tokens)


def _what_if(
    options: argparse.Namespace,
    trace: "Trace",
    setting: "Setting",
    policy: str,
    progress: "Progress | None",
) -> "Answer | None":
    from warmroute.proxy.replay.what_if import WhatIf

    if options.what_if is None:
        return None
    return WhatIf(trace, setting, policy, options.what_if, progress).search()
