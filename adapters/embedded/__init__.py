"""A small real engine in NumPy, for machines without a GPU."""
