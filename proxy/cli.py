"""The command line of warmroute.

Everything beyond parsing is imported by the command that needs it, so that
``--help`` answers at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from warmroute.policies.errors import ConfigError, WarmrouteError

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130

_FLAGS = {"listen": "listen", "admin": "admin", "log_level": "log.level"}

_EXAMPLES = """examples:
  warmroute serve http://127.0.0.1:8101 http://127.0.0.1:8102
  warmroute serve -c config.yaml
"""
_SERVE_EXAMPLES = """examples:
  warmroute serve http://127.0.0.1:8101 http://127.0.0.1:8102
  warmroute serve -c config.yaml --check-config
  WARMROUTE_LOG__LEVEL=debug warmroute serve -c config.yaml --listen :8080

exit codes: 0 stopped as asked, 1 failed, 2 bad usage or configuration
"""
_SCHEMA_EXAMPLES = """examples:
  warmroute schema > warmroute.schema.json
  check-jsonschema --schemafile warmroute.schema.json config.yaml
  warmroute schema --markdown | less
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that *arguments* name and return the exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        match options.command:
            case "serve":
                return _serve(options)
            case "schema":
                return _print_schema(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    except WarmrouteError as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    parser.print_help(sys.stderr)
    return BAD_USAGE


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="warmroute",
        description="Route every prompt to the engine whose KV cache is warm for it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"warmroute {version('warmroute')}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_serve(commands)
    _add_schema(commands)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = commands.add_parser(
        "serve",
        help="run the proxy",
        description="Run the proxy in front of the backends of a file, or of URLs.",
        epilog=_SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument(
        "urls", nargs="*", metavar="URL", help="backends, instead of a file"
    )
    serve.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="configuration file (YAML)"
    )
    serve.add_argument(
        "--check-config",
        action="store_true",
        help="check the configuration with its files and plugins, and exit",
    )
    serve.add_argument(
        "--listen", metavar="ADDR", help="address of the data port, host:port or :port"
    )
    serve.add_argument(
        "--admin", metavar="ADDR", help="address of the admin port, or off"
    )
    serve.add_argument(
        "--log-level", metavar="LEVEL", help="debug, info, warning or error"
    )
    serve.set_defaults(parser=serve)


def _add_schema(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of the configuration",
        description="Print the JSON Schema of the configuration file.",
        epilog=_SCHEMA_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    schema.add_argument(
        "--markdown", action="store_true", help="print the reference to read instead"
    )


def _serve(options: argparse.Namespace) -> int:
    from warmroute.proxy.config import ConfigSource

    if options.config and options.urls:
        options.parser.error("give a file or URLs, not both")
    if not (options.config or options.urls or _has_backends(os.environ)):
        options.parser.error("give a file with -c, or the URLs of backends")
    given = {path: getattr(options, name) for name, path in _FLAGS.items()}
    flags = {path: text for path, text in given.items() if text is not None}
    source = ConfigSource(options.config, options.urls, flags)
    config = source.load(os.environ)
    if options.check_config:
        backends = len(config.backends)
        noun = "backend" if backends == 1 else "backends"
        place = options.config or "command line"
        print(f"{place}: ok ({backends} {noun}, policy {config.policy.name})")
        return 0
    from warmroute.proxy.app import run

    return run(config, lambda: source.load(os.environ))


def _has_backends(environ: Mapping[str, str]) -> bool:
    return any(name.startswith("WARMROUTE_BACKENDS") for name in environ)


def _print_schema(options: argparse.Namespace) -> int:
    if options.markdown:
        from warmroute.proxy.config.reference import markdown

        print(markdown(), end="")
    else:
        from warmroute.proxy.config.schema import json_schema

        print(json.dumps(json_schema(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
