"""The one error that the example shows without a traceback."""


class ExampleError(Exception):
    """Say what stopped the example, and what to do about it."""
