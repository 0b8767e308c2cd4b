"""Facts that many spans have in common, written once for all of them.

More than half of what a trace tells was told by earlier ones: who listens, which
backend, which model. Each function here remembers the latest groups of such facts that
it made, so that a span takes a whole group as bytes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from warmroute.proxy.telemetry import span_names as names
from warmroute.proxy.telemetry.attributes import Attribute, write_attributes

SPAN_ATTRIBUTE: Final = b"\x4a"  # the tag of an attribute within a span


class SharedFacts:
    """Some attributes, and what OTLP makes of them."""

    __slots__ = ("attributes", "written")

    def __init__(self, attributes: Mapping[str, Attribute]) -> None:
        self.attributes = attributes
        self.written = write_attributes(SPAN_ATTRIBUTE, attributes)

    def __repr__(self) -> str:
        return f"<SharedFacts {self.attributes}>"


@lru_cache(maxsize=256)
def facts_of_request(
    method: str, path: str, version: str, status: int, sampled_by: str
) -> SharedFacts:
    """Return what was asked for in the request line, and how it ended."""
    facts: dict[str, Attribute] = {
        names.HTTP_METHOD: method if method in names.METHODS else "_OTHER",
        names.URL_PATH: path,
        names.PROTOCOL_VERSION: version,
        names.HTTP_STATUS: status,
        names.SAMPLED_BY: sampled_by,
    }
    if path in names.ROUTES:
        facts[names.HTTP_ROUTE] = path
    if method not in names.METHODS:
        facts[names.HTTP_METHOD_ORIGINAL] = method
    return SharedFacts(facts)


@lru_cache(maxsize=512)
def facts_of_choice(
    policy: str,
    num_candidates: int,
    backend: str,
    rank: int | None,
    reason: str,
    grade: str,
    view: str,
) -> SharedFacts:
    """Return who chose whom, among how many, and why."""
    facts: dict[str, Attribute] = {
        names.POLICY: policy,
        names.CANDIDATES: num_candidates,
        names.BACKEND: backend,
        names.REASON: reason,
        names.GRADE: grade,
        names.VIEW: view,
    }
    if rank is not None:
        facts[names.RANK] = rank
    return SharedFacts(facts)


@lru_cache(maxsize=256)
def facts_of_backend(name: str, engine: str, host: str, port: int) -> SharedFacts:
    """Return to whom an attempt went."""
    return SharedFacts(
        {
            names.PROVIDER: engine,
            names.SERVER_ADDRESS: host,
            names.SERVER_PORT: port,
            names.BACKEND: name,
        }
    )


@lru_cache(maxsize=256)
def facts_of_prompt(operation: str, model: str | None, stream: bool) -> SharedFacts:
    """Return what kind of answer was asked for."""
    facts: dict[str, Attribute] = {
        names.OPERATION: operation,
        names.REQUEST_STREAM: stream,
    }
    if model is not None:
        facts[names.REQUEST_MODEL] = model
    return SharedFacts(facts)


@lru_cache(maxsize=64)
def facts_of_answer(
    status: int, model: str | None, finish_reasons: tuple[str, ...]
) -> SharedFacts:
    """Return who answered, and how the answer ended."""
    facts: dict[str, Attribute] = {names.HTTP_STATUS: status}
    if model is not None:
        facts[names.RESPONSE_MODEL] = model
    if finish_reasons:
        facts[names.FINISH_REASONS] = finish_reasons
    return SharedFacts(facts)
