"""A clock that stands still until a test moves it."""


class FakeClock:
    """Tell the time that a test sets, in seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
