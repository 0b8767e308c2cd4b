"""The errors of warmroute: one hierarchy, foreign exceptions end at the edge."""


class WarmrouteError(Exception):
    """Root of every error that warmroute raises on purpose."""


class ConfigError(WarmrouteError):
    """The configuration is wrong; the message names place, value and remedy."""


class PolicyError(WarmrouteError):
    """A policy is unknown, or was built with options that it does not take."""


class AdapterError(WarmrouteError):
    """An engine could not be talked to as its adapter expects."""


class BackendUnavailable(AdapterError):
    """A backend did not answer: refused, reset, or out of time."""


class ProtocolMismatch(AdapterError):
    """A backend answered with something that its adapter cannot read."""


class ClientError(WarmrouteError):
    """The request cannot be served, and the client is told why.

    Args:
        status: HTTP status of the answer.
        code: Stable slug that programs may match on, such as ``body_too_large``.
        message: What was wrong, the value, what is allowed, and the remedy.
        retry_after_s: Seconds until a retry may help; sent as ``Retry-After``.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.param: str | None = None
        """Path of the body's field that is wrong, where it is known."""
