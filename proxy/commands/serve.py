"""``warmroute serve``: run the proxy."""

import argparse
import os

from warmroute.proxy.commands.backends import add_backend_arguments, config_source

_FLAGS = {"listen": "listen", "admin": "admin", "log_level": "log.level"}


class ServeCommand:
    """Run the proxy in front of the backends of a file, or of URLs."""

    name = "serve"
    help = "run the proxy"
    description = "Run the proxy in front of the backends of a file, or of URLs."
    examples = """examples:
  warmroute serve http://127.0.0.1:8101 http://127.0.0.1:8102
  warmroute serve -c config.yaml --check-config
  WARMROUTE_LOG__LEVEL=debug warmroute serve -c config.yaml --listen :8080

exit codes: 0 stopped as asked, 1 failed, 2 bad usage or configuration
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add_backend_arguments(parser)
        add = parser.add_argument
        add(
            "--check-config",
            action="store_true",
            help="check the configuration with its files and plugins, and exit",
        )
        add(
            "--listen",
            metavar="ADDR",
            help="address of the data port, host:port or :port",
        )
        add("--admin", metavar="ADDR", help="address of the admin port, or off")
        add("--log-level", metavar="LEVEL", help="debug, info, warning or error")

    def run(self, options: argparse.Namespace) -> int:
        """Serve until a signal, or check the configuration and return."""
        given = {path: getattr(options, name) for name, path in _FLAGS.items()}
        flags = {path: text for path, text in given.items() if text is not None}
        source = config_source(options, flags)
        config = source.load(os.environ)
        if options.check_config:
            count = len(config.backends)
            noun = "backend" if count == 1 else "backends"
            place = options.config or "command line"
            print(f"{place}: ok ({count} {noun}, policy {config.policy.name})")
            return 0
        from warmroute.proxy.app import run

        return run(config, lambda: source.load(os.environ))
