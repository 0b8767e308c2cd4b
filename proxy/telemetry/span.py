"""One span as plain facts, until the end of its request."""

from collections.abc import Mapping
from typing import Final

from warmroute.proxy.telemetry.attributes import Attribute
from warmroute.proxy.telemetry.shared_facts import SharedFacts
from warmroute.proxy.telemetry.span_names import ERROR_TYPE

# OTLP's numbers of the kinds of spans.
INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3


class Event:
    """What happened at one moment of a span."""

    __slots__ = ("at_s", "attributes", "name")

    def __init__(
        self, name: str, at_s: float, attributes: Mapping[str, Attribute]
    ) -> None:
        self.name = name
        self.at_s = at_s
        self.attributes = attributes

    def __repr__(self) -> str:
        return f"<Event {self.name!r}>"


class Span:
    """One span: times in seconds of the monotonic clock, attributes by name.

    Attributes:
        kind: `SERVER`, `INTERNAL` or `CLIENT`.
        trace_id: 16 bytes.
        span_id: 8 bytes.
        parent_id: None for the first span of a trace.
        is_remote: Whether the parent is a span of another process.
        error: Its type, when it failed.
        shared: Attributes that other spans have as well, in groups.
        own: The other attributes; no name is in both.
    """

    __slots__ = (
        *("end_s", "error", "events", "is_remote", "kind", "name", "own"),
        *("parent_id", "shared", "span_id", "start_s", "trace_id"),
    )

    def __init__(
        self,
        name: str,
        kind: int,
        trace_id: bytes,
        span_id: bytes,
        parent_id: bytes | None,
        start_s: float,
        end_s: float,
        *,
        is_remote: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.is_remote = is_remote
        self.start_s = start_s
        self.end_s = end_s
        self.error: str | None = None
        self.shared: list[SharedFacts] = []
        self.own: dict[str, Attribute] = {}
        self.events: list[Event] = []

    @property
    def attributes(self) -> dict[str, Attribute]:
        """All attributes, in the order in which they are written."""
        found: dict[str, Attribute] = {}
        for shared in self.shared:
            found.update(shared.attributes)
        return {**found, **self.own}

    def fail(self, error_type: str) -> None:
        """Mark the span as an error of *error_type*."""
        self.error = error_type
        self.own[ERROR_TYPE] = error_type

    def add(self, key: str, value: Attribute | None) -> None:
        """Set an attribute whose value is known."""
        if value is not None:
            self.own[key] = value

    def note(self, name: str, at_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Add an event."""
        self.events.append(Event(name, at_s, attributes))

    def __repr__(self) -> str:
        return f"<Span {self.name!r} {self.error or 'ok'}>"
