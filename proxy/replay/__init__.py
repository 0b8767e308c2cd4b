"""``warmroute replay``: a recorded trace, played on simulated time."""
