"""``warmroute demo``: two engines, the proxy, real chats, and a table."""

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from warmroute.policies.registry import explain_unknown, policies
from warmroute.proxy.commands.numbers import whole

_NAMES = ("a", "b")


class DemoCommand:
    """Run two embedded engines with warmroute in front, and compare."""

    name = "demo"
    help = "show it: two engines, the proxy, real chats, a table"
    description = (
        "Start two embedded engines with a small real model, play the same real chats "
        "through warmroute under round_robin and then expected_ttft, print what the "
        "engines counted, and stay up to be tried. Needs warmroute[embedded], and no "
        "GPU."
    )
    examples = """examples:
  warmroute demo
  warmroute demo --once
  warmroute demo --once --policy least_requests --policy expected_ttft --json

exit codes: 0 all answered, and ended by Ctrl-C after the table unless --once;
1 something failed; 2 bad usage; 130 Ctrl-C in the middle of the work
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add = parser.add_argument
        add("--once", action="store_true", help="end after the table")
        add(
            "--policy",
            action="append",
            metavar="NAME",
            help="policy to play under, repeatable (default: round_robin, then "
            "expected_ttft); 'direct' is the client's own round robin",
        )
        add("--users", type=whole(1), default=4, help="requests at a time (4)")
        add("--conversations", type=whole(1), default=9, help="chats in all (9)")
        add("--turns", type=whole(1), default=8, help="turns of a chat at most (8)")
        add("--open", type=whole(1), default=2, help="chats a user keeps open (2)")
        add("--max-tokens", type=whole(1), default=8, help="tokens an answer (8)")
        add("--blocks", type=whole(1), help="blocks of an engine (384; tiny: 2400)")
        add("--model", metavar="PATH", help="model, as `warmroute engine` takes it")
        add("--json", action="store_true", help="print JSON, not a table")

    def run(self, options: argparse.Namespace) -> int:
        """Play it and return the exit code."""
        from warmroute.proxy.demo.chats import num_chats

        if options.conversations > num_chats():
            options.parser.error(f"--conversations must be at most {num_chats()}")
        for policy in set(options.policy or ()) - {"direct", *policies.names()}:
            known = ("direct", *policies.names())
            options.parser.error(explain_unknown("policy", policy, known))
        # Where it was started in the background, Ctrl-C may be ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        try:
            return asyncio.run(_play(options))
        except KeyboardInterrupt:
            print("\ninterrupted, all stopped", file=sys.stderr)
            raise


async def _play(options: argparse.Namespace) -> int:
    import aiohttp

    from warmroute.proxy.demo.chats import read_chats
    from warmroute.proxy.demo.compare import Workload
    from warmroute.proxy.demo.embedded import EngineOptions, running_engines
    from warmroute.proxy.demo.front import DEFAULT_PORTS, Setup
    from warmroute.proxy.demo.show import POLICIES, Show, model_name

    folder = Path(tempfile.mkdtemp(prefix="warmroute-demo-"))
    print(f"logs: {folder}", file=sys.stderr)
    # Every byte is a token of the tiny model, so its prompts are longer.
    blocks = options.blocks or (2400 if options.model == "tiny" else 384)
    settings = EngineOptions(blocks, options.model)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        running_engines(settings, _NAMES, folder, http) as engines,
    ):
        model = await model_name(engines[0], http)
        workload = Workload(
            read_chats(options.conversations, most_turns=options.turns),
            options.users,
            options.open,
            model,
            options.max_tokens,
            think_s=0.2,
            setup=Setup(model=model, tokenizer="engine", ports=DEFAULT_PORTS),
        )
        policies = options.policy or POLICIES
        show = Show(workload, policies, not options.once, options.json)
        return await show.run(engines, folder, http)


def _interrupt(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)
