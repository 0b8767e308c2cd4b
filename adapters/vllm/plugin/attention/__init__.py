"""Blocks chosen by the attention that they receive: an experiment, off by default."""
