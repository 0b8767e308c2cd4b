"""Token eviction inside a sequence, for the embedded engine."""
