"""One span as plain facts, until its trace is exported."""

from collections.abc import Mapping, Sequence

from opentelemetry.trace import SpanContext, SpanKind

from warmroute.proxy.telemetry.span_names import ERROR_TYPE

Attribute = str | bool | int | float | Sequence[str]


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
    """One span: times in seconds of the monotonic clock, attributes by name."""

    __slots__ = (
        *("attributes", "context", "end_s", "error", "events", "kind"),
        *("name", "parent", "start_s"),
    )

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        context: SpanContext,
        parent: SpanContext | None,
        start_s: float,
        end_s: float,
    ) -> None:
        self.name = name
        self.kind = kind
        self.context = context
        self.parent = parent
        self.start_s = start_s
        self.end_s = end_s
        self.error: str | None = None
        self.attributes: dict[str, Attribute] = {}
        self.events: list[Event] = []

    def fail(self, error_type: str) -> None:
        """Mark the span as an error of *error_type*."""
        self.error = error_type
        self.attributes[ERROR_TYPE] = error_type

    def add(self, key: str, value: Attribute | None) -> None:
        """Set an attribute whose value is known."""
        if value is not None:
            self.attributes[key] = value

    def note(self, name: str, at_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Add an event."""
        self.events.append(Event(name, at_s, attributes))

    def __repr__(self) -> str:
        return f"<Span {self.name!r} {self.error or 'ok'}>"
