"""``warmroute why``: why a request went where it went."""

import argparse
import json
from urllib.parse import quote

from warmroute.policies.errors import WarmrouteError
from warmroute.proxy.commands.admin import add_admin_arguments, admin_client


class WhyCommand:
    """Explain one decision of a running proxy."""

    name = "why"
    help = "tell why a request went where it went"
    description = (
        "Ask a running proxy for the decision of one request, and print a sentence, "
        "every backend with what it had cached and what it would have cost, and how it "
        "ended. The id is the X-Request-Id of the answer."
    )
    examples = """examples:
  warmroute why --last
  warmroute why r-17 --admin http://10.0.0.5:9090
  warmroute why --last --json

exit codes: 0 explained, 1 no such decision or no such proxy, 2 bad usage
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "request_id", nargs="?", metavar="REQUEST_ID", help="which request"
        )
        parser.add_argument(
            "--last", action="store_true", help="the newest decision, whichever it is"
        )
        add_admin_arguments(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Ask, print, and return the exit code."""
        if (not options.request_id) is not options.last:
            options.parser.error("give a REQUEST_ID or --last")
        from warmroute.proxy.console.answers import Decision, Decisions
        from warmroute.proxy.console.explanation import explain

        client = admin_client(options)
        if options.last:
            newest = client.read("/api/decisions?limit=1", Decisions).decisions
            if not newest:
                raise WarmrouteError(
                    f"{client.url} has not routed a request yet; send one first"
                )
            body = bytes(newest[0])
        else:
            body = client.get(f"/api/decisions/{quote(options.request_id, safe='')}")
        decision = client.decode(body, Decision)
        print(json.dumps(json.loads(body)) if options.json else explain(decision))
        return 0
