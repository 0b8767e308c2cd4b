"""The records of decisions, and the counts behind every metric."""

from warmroute.proxy.ledger.ledger import (
    OTHER,
    Ledger,
)

__all__ = [
    "OTHER",
    "Ledger",
]
