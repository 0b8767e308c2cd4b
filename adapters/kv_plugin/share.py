"""How much of an engine's cache may be retained."""

import logging
import os

from warmroute.adapters.kv_plugin.names import SHARE_VARIABLE

logger = logging.getLogger(__name__)

DEFAULT_SHARE = 0.5


def retained_share() -> float:
    """Read the share from the environment; a bad one is logged, and is none."""
    text = os.environ.get(SHARE_VARIABLE, "")
    try:
        share = float(text) if text else DEFAULT_SHARE
    except ValueError:
        share = -1.0
    if 0.0 <= share <= 1.0:
        return share
    logger.error(
        "warmroute: %s=%r (allowed: 0 to 1); nothing can be retained",
        SHARE_VARIABLE,
        text[:40],
    )
    return 0.0


def retention_cap(num_pages: int, page_size: int, longest: int, share: float) -> int:
    """Return the most pages that may be retained.

    However large the share, there stays room for the longest request that the engine
    takes: one that never fits would wait until the last retention ends.

    Args:
        num_pages: Pages that requests can have.
        page_size: Tokens a page.
        longest: Most tokens that one request takes up.
        share: Largest share of the pages, from 0 to 1.
    """
    room = num_pages - -(-longest // page_size)
    return max(0, min(int(share * num_pages), room))
