"""``warmroute doctor``: say what keeps routing from working, and the remedy."""

import argparse
import asyncio
import json
import os
from typing import TYPE_CHECKING

from warmroute.proxy.commands.admin import admin_client
from warmroute.proxy.commands.backends import add_backend_arguments, config_source
from warmroute.proxy.commands.numbers import positive
from warmroute.proxy.demo.progress import step_on_terminal

if TYPE_CHECKING:
    from warmroute.proxy.config import Config
    from warmroute.proxy.demo.progress import Step
    from warmroute.proxy.doctor.examination import Examined

FAILED = 1


class DoctorCommand:
    """Examine the backends of a file, or of URLs."""

    name = "doctor"
    help = "examine the backends, and name what is wrong with its remedy"
    description = (
        "Connect to each backend and check all that routing relies on: keys, models, "
        "prefix caching, cached-token reports, KV events, clocks, timeouts. Sends a "
        "handful of small prompts of random tokens to each; --no-probe sends none."
    )
    examples = """examples:
  warmroute doctor -c config.yaml
  warmroute doctor http://127.0.0.1:8101 http://127.0.0.1:8102
  warmroute doctor -c config.yaml --json --no-probe
  warmroute doctor -c config.yaml --admin http://127.0.0.1:9090

exit codes: 0 nothing is broken, 1 something is, 2 bad usage or configuration
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add_backend_arguments(parser)
        add = parser.add_argument
        add("--no-probe", action="store_true", help="send no prompts")
        add(
            "--timeout",
            type=positive(600, " seconds"),
            default=10.0,
            metavar="S",
            help="wait for each answer of an engine so long (10)",
        )
        add(
            "--admin",
            metavar="URL",
            help="admin port of the running proxy, to ask what breaks prefixes; its "
            "token comes from WARMROUTE_ADMIN_TOKEN",
        )
        add("--json", action="store_true", help="print JSON, not a table")

    def run(self, options: argparse.Namespace) -> int:
        """Examine, print what was found, and return the exit code."""
        config = config_source(options, {}).load(os.environ)
        from warmroute.proxy.doctor.report import as_object, as_text

        with step_on_terminal("examining") as step:
            examined = asyncio.run(_examine(config, options, step))
        if options.json:
            print(json.dumps(as_object(examined), indent=2))
        else:
            print(as_text(examined))
        return FAILED if examined.is_broken else 0


async def _examine(
    config: "Config", options: argparse.Namespace, step: "Step | None"
) -> "Examined":
    from warmroute.proxy.doctor.examination import Examination

    admin = None if options.admin is None else admin_client(options)
    examination = Examination(
        config,
        options.timeout,
        not options.no_probe,
        _count_nothing if step is None else step.count,
        admin,
    )
    return await examination.run()


def _count_nothing(done: int, total: int) -> None:
    """Show no progress."""
