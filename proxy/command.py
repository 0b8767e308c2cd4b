"""The contract of a command of ``warmroute``, and where commands are found."""

import argparse
from typing import Protocol

from warmroute.policies.errors import ConfigError
from warmroute.policies.registry import Registry


class Command(Protocol):
    """One word after ``warmroute``.

    Commands of other floors and distributions come through the entry-point
    group `warmroute.commands`, as the built-in ones do. The module of a command
    is imported by every ``--help``, so what is heavy is imported by `run`.

    Args:
        name: The word, as registered.
        help: What it does, for the list of commands.
        description: What it does, in a sentence.
        examples: Lines that can be copied, and its exit codes.
    """

    name: str
    help: str
    description: str
    examples: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Do it and return the exit code; ``options.parser`` reports bad usage.

        Raises:
            ConfigError: The usage or the configuration is wrong: exit code 2.
            WarmrouteError: The thing failed: exit code 1.
        """
        ...


commands: Registry[Command] = Registry("warmroute.commands", "command", ConfigError)
"""The commands, built-in and installed."""
