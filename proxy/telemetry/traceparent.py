"""The W3C ``traceparent`` header, read without regular expressions."""

from opentelemetry.trace import SpanContext, TraceFlags

_HEX = frozenset("0123456789abcdef")


def parse_traceparent(value: str) -> SpanContext | None:
    """Return the remote parent that *value* names, or None when malformed.

    Versions above 00 are read by the rules of 00, as the recommendation says
    (W3C Trace Context, section 3.2.2 and 4.3).
    """
    version, trace_id, span_id, flags = value[:2], value[3:35], value[36:52], value[53:]
    if len(value) < 55 or value[2] != "-" or value[35] != "-" or value[52] != "-":
        return None
    if version == "ff" or (version == "00" and len(value) != 55):
        return None
    if not _HEX.issuperset(version + trace_id + span_id + flags[:2]):
        return None
    if flags[2:3] not in ("", "-"):
        return None
    context = SpanContext(
        int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags[:2], 16))
    )
    return context if context.is_valid else None
