"""The one error that a demonstration shows, as a line."""

from warmroute.policies.errors import WarmrouteError


class DemoError(WarmrouteError):
    """Say what stopped a demonstration, and what to do about it."""
