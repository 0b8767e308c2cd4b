"""What every door of KV control asks of a call."""

from warmroute.adapters.caller import brings
from warmroute.policies.errors import ClientError

MAX_BODY_BYTES = 16 * 1024 * 1024


def check_open(shut: str | None) -> None:
    """Return unless a door is *shut*, which says why.

    Raises:
        ClientError: 403.
    """
    if shut is not None:
        raise ClientError(403, "kv_control_off", f"KV control is off: {shut}")


def check_token(authorization: str, token: bytes, variable: str) -> None:
    """Return when an Authorization header brings *token*.

    Args:
        authorization: The header.
        token: What it has to bring.
        variable: Name of the environment variable that has it, for the remedy.

    Raises:
        ClientError: 401.
    """
    if not brings(authorization, token):
        raise ClientError(
            401,
            "engine_token_wrong",
            f"KV control wants the engine's token; send the header "
            f"'Authorization: Bearer ${variable}'",
        )


def check_json(method: str, kind: str) -> None:
    """Return when a body is JSON, which web pages cannot send without asking.

    Args:
        method: HTTP method; only POST has a body.
        kind: Content type, with parameters or without.

    Raises:
        ClientError: 415.
    """
    plain = kind.partition(";")[0].strip().lower()
    if method == "POST" and plain != "application/json":
        raise ClientError(
            415,
            "content_type_not_json",
            f"content type {kind[:200]!r} (allowed: application/json; curl sends "
            f"it with --json)",
        )


def body_too_long() -> ClientError:
    """Return the refusal of a body above `MAX_BODY_BYTES`."""
    return ClientError(
        413,
        "body_too_large",
        f"the body has more than {MAX_BODY_BYTES} bytes; name fewer blocks",
    )
