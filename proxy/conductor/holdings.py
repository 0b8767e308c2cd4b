"""What the conductor has engines retain, so that it can let go of all of it."""


class Holdings:
    """The blocks retained on each backend, until their retention ends by itself."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[str, dict[int, float]] = {}

    def __repr__(self) -> str:
        return f"<Holdings {self.counts()}>"

    def add(self, backend: str, keys: list[int], until: float) -> dict[int, float]:
        """Note that blocks are retained until some time, or later as known.

        Returns:
            Those that were retained before, with the time for each.
        """
        known = self._until.setdefault(backend, {})
        before = {key: known[key] for key in keys if key in known}
        known.update((key, max(until, before.get(key, until))) for key in keys)
        return before

    def restore(self, backend: str, keys: list[int], before: dict[int, float]) -> None:
        """Take back what `add` noted of blocks, for what it returned."""
        known = self._until.get(backend, {})
        for key in keys:
            known.pop(key, None)
            if key in before:
                known[key] = before[key]

    def count_with(self, backend: str, keys: list[int]) -> int:
        """Count the blocks retained on a backend if these were, too."""
        return len(self._until.get(backend, {}).keys() | set(keys))

    def count(self, backend: str) -> int:
        """Count the blocks retained on a backend."""
        return len(self._until.get(backend, ()))

    def expire(self, now: float) -> None:
        """Forget what has ended by itself. O(blocks retained)."""
        for backend, blocks in list(self._until.items()):
            left = {key: until for key, until in blocks.items() if until > now}
            if left:
                self._until[backend] = left
            else:
                del self._until[backend]

    def forget(self, backend: str) -> None:
        """Forget what a backend held that is gone."""
        self._until.pop(backend, None)

    def take_all(self) -> dict[str, list[int]]:
        """Return the blocks retained on each backend, and forget them."""
        held, self._until = self._until, {}
        return {backend: list(blocks) for backend, blocks in held.items()}

    def counts(self) -> dict[str, int]:
        """Return how many blocks are retained on each backend."""
        each = self._until.items()
        return {backend: len(blocks) for backend, blocks in each if blocks}
