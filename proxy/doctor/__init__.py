"""``warmroute doctor``: what keeps the fleet from being routed well, and the remedy."""
