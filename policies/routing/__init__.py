"""Routing policies, one a file."""
