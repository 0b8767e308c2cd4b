"""``warmroute top``: the fleet, live in the terminal."""

import argparse
import json
import sys

from warmroute.proxy.commands.admin import add_admin_arguments, admin_client


class TopCommand:
    """Watch a running proxy."""

    name = "top"
    help = "watch the fleet, live in the terminal"
    description = (
        "Show what `warmroute stats` shows, and how fast it moves, anew every second. "
        "q or Ctrl-C ends it. Where the output is no terminal it is printed once."
    )
    examples = """examples:
  warmroute top
  warmroute top --admin http://10.0.0.5:9090
  warmroute top --json | jq .paid_twice_ratio

exit codes: 0 ended by q, 1 no such proxy at the start, 2 bad usage, 130 Ctrl-C
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add_admin_arguments(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Watch until somebody has seen enough, and return the exit code."""
        from warmroute.proxy.console.answers import State
        from warmroute.proxy.console.overview import overview

        client = admin_client(options)
        body = client.get("/api/state")
        state = client.decode(body, State)
        if options.json:
            print(json.dumps(json.loads(body)))
        elif not (sys.stdout.isatty() and sys.stdin.isatty()):
            print(overview(state))
        else:
            from warmroute.proxy.console.screen import Screen
            from warmroute.proxy.console.watch import Watch

            with Screen() as screen:
                Watch(client, screen).run(state)
        return 0
