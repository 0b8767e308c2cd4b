"""The command line of warmroute.

Everything beyond parsing is imported by the command that needs it, so that
``--help`` answers at once.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from warmroute.policies.errors import ConfigError, WarmrouteError
from warmroute.proxy.command import Command, commands

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130
READER_LEFT = 141  # as a shell shows SIGPIPE

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_EXAMPLES = """examples:
  warmroute demo
  warmroute serve http://127.0.0.1:8101 http://127.0.0.1:8102
  warmroute serve -c config.yaml
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that *arguments* name and return the exit code."""
    try:
        try:
            return _run(arguments)
        finally:
            if sys.stdout is not None:  # closed by the shell, there is none
                sys.stdout.flush()  # here, where it can still be minded
    except BrokenPipeError:
        _drop_output()
        return READER_LEFT
    except ConfigError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    except WarmrouteError as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _NO_ROOM or error.strerror is None:
            raise
        _drop_output()
        reason = error.strerror.lower()
        print(f"warmroute: cannot write the output: {reason}", file=sys.stderr)
        return FAILED


def _run(arguments: Sequence[str] | None) -> int:
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # by the command, whose usage is then shown
        asked = getattr(options, "parser", parser)
        asked.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.print_help(sys.stderr)
        return BAD_USAGE
    command: Command = options.runs
    return command.run(options)


def _drop_output() -> None:
    """Let what is still buffered go nowhere: it would fail again at the very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands; one that does not import is left out."""
    parser = argparse.ArgumentParser(
        prog="warmroute",
        description="Route every prompt to the engine whose KV cache is warm for it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"warmroute {version('warmroute')}"
    )
    words = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in commands.names():
        try:
            command = commands.get(name)()
        except WarmrouteError as error:
            print(f"warmroute: {error}", file=sys.stderr)
            continue
        word = words.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=command.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(word)
        word.set_defaults(parser=word, runs=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
