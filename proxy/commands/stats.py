"""``warmroute stats``: the fleet on one page."""

import argparse
import json

from warmroute.proxy.commands.admin import add_admin_arguments, admin_client


class StatsCommand:
    """Show the state of a running proxy."""

    name = "stats"
    help = "show the fleet, and what is paid twice"
    description = (
        "Ask a running proxy for its state, and print it: the share of prompt tokens "
        "that was computed for a second time, every backend with load and view, and "
        "what breaks prefixes."
    )
    examples = """examples:
  warmroute stats
  warmroute stats --admin http://10.0.0.5:9090
  warmroute stats --json

exit codes: 0 shown, 1 no such proxy, 2 bad usage
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add_admin_arguments(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Ask, print, and return the exit code."""
        from warmroute.proxy.console.answers import State
        from warmroute.proxy.console.overview import overview

        client = admin_client(options)
        body = client.get("/api/state")
        state = client.decode(body, State)
        print(json.dumps(json.loads(body)) if options.json else overview(state))
        return 0
