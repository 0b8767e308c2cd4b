"""Continuous batching over one model and one block pool."""
