"""OpenAI's error shape, which every answer that is an error of ours has."""

from typing import Final

from warmroute.policies.errors import ClientError

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "timeout",
}


def describe_error(error: ClientError) -> dict[str, object]:
    """Return *error* as ``{"error": {message, type, param, code}}``."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.status, kind),
            "param": error.param,
            "code": error.code,
        }
    }
