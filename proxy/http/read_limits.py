"""What a client may send, and how it is told that it sent too much."""

from typing import NamedTuple

from warmroute.policies.errors import ClientError


class ReadLimits(NamedTuple):
    """What a client may send, and how long it may take; see the config.

    A reload brings another object, also where the values are the same.
    """

    head_bytes: int
    headers: int
    body_bytes: int
    header_s: float
    body_s: float
    keep_alive_s: float
    idle_s: float
    buffered_bytes: int


def body_too_large(size: int, limits: ReadLimits) -> ClientError:
    """Make the refusal of a body of at least *size* bytes."""
    return ClientError(
        413,
        "body_too_large",
        f"the request body has at least {size} bytes; at most {limits.body_bytes} are "
        "allowed (limits.body_bytes)",
    )


def head_too_large(size: int, limits: ReadLimits) -> ClientError:
    """Make the refusal of a head of at least *size* bytes."""
    return ClientError(
        431,
        "head_too_large",
        f"the request head has at least {size} bytes; at most {limits.head_bytes} are "
        "allowed (limits.head_bytes)",
    )


def too_many_headers(count: int, limits: ReadLimits) -> ClientError:
    """Make the refusal of a head with *count* header lines."""
    return ClientError(
        431,
        "too_many_headers",
        f"the request has {count} headers; at most {limits.headers} are allowed "
        "(limits.headers)",
    )


def too_much_buffered(limits: ReadLimits) -> ClientError:
    """Make the refusal of a body that all others together leave no room for."""
    return ClientError(
        503,
        "overloaded",
        "the bodies of all requests together reach their limit of "
        f"{limits.buffered_bytes} bytes (limits.buffered_bytes)",
        retry_after_s=1,
    )
