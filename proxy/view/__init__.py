"""What each backend has cached, as far as the proxy can know."""

from warmroute.proxy.view.view import (
    View,
)

__all__ = [
    "View",
]
