"""Find plugins by name through entry points, built-ins and third parties alike."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Generic, TypeVar

from warmroute.policies.errors import PolicyError, WarmrouteError

if TYPE_CHECKING:
    from warmroute.policies.routing.base import Policy

T = TypeVar("T")


def explain_unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that *name* is no known *kind*, what is known, and what was meant."""
    names = sorted(known)
    message = f"unknown {kind} {name!r} (known: {', '.join(names) or 'none'})"
    close = difflib.get_close_matches(name, names, 1)
    return f"{message}; did you mean {close[0]!r}" if close else message


class Registry(Generic[T]):
    """The plugins of one entry-point group.

    The group is read at the first use and kept; a plugin's module is imported
    when it is first asked for, so those that nobody uses cost nothing.

    Args:
        group: Entry-point group, such as ``warmroute.policies``.
        kind: What a plugin is called in messages, such as ``policy``.
        error: Class of the errors raised.
    """

    __slots__ = ("_entries", "_error", "_loaded", "group", "kind")

    def __init__(
        self, group: str, kind: str, error: type[WarmrouteError] = PolicyError
    ) -> None:
        self.group = group
        self.kind = kind
        self._error = error
        self._entries: dict[str, EntryPoint] | None = None
        self._loaded: dict[str, type[T]] = {}

    def __repr__(self) -> str:
        found = "not read" if self._entries is None else f"{len(self._entries)} found"
        return f"<Registry {self.group}: {found}, {len(self._loaded)} loaded>"

    def names(self) -> list[str]:
        """List the names of all plugins, sorted; imports none of them."""
        return sorted(self._scan())

    def get(self, name: str) -> type[T]:
        """Return the class behind *name*, importing it at the first call.

        Raises:
            WarmrouteError: Of the class given: the name is unknown, two
                distributions claim one name, or the plugin does not import.
        """
        plugin = self._loaded.get(name)
        if plugin is None:
            entry = self._scan().get(name)
            if entry is None:
                raise self._error(explain_unknown(self.kind, name, self._scan()))
            plugin = self._loaded[name] = self._load(entry)
        return plugin

    def _scan(self) -> dict[str, EntryPoint]:
        if self._entries is None:
            entries: dict[str, EntryPoint] = {}
            for entry in entry_points(group=self.group):
                other = entries.setdefault(entry.name, entry)
                if other.value != entry.value or _owner(other) != _owner(entry):
                    raise self._error(self._explain_duplicate(other, entry))
            self._entries = entries
        return self._entries

    def _explain_duplicate(self, first: EntryPoint, second: EntryPoint) -> str:
        return (
            f"two {self.group} plugins are named {first.name!r}: "
            f"{first.value} of {_owner(first)} and {second.value} of "
            f"{_owner(second)}; uninstall one of the two distributions"
        )

    def _load(self, entry: EntryPoint) -> type[T]:
        try:
            plugin: type[T] = entry.load()
        except Exception as error:  # an import may raise whatever it likes
            raise self._error(
                f"{self.kind} {entry.name!r}: cannot import {entry.value} of "
                f"{_owner(entry)}: {type(error).__name__}: {error}"
            ) from error
        return plugin


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed distribution"


policies: Registry[Policy] = Registry("warmroute.policies", "policy")
"""The routing policies."""
