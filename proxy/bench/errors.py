"""The error of a measurement."""

from warmroute.policies.errors import WarmrouteError


class BenchError(WarmrouteError):
    """Something could not be measured; the message says what to do."""
