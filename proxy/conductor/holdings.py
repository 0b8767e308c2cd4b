"""What the conductor has engines retain, so that it can let go of all of it."""


class Holdings:
    """The blocks retained on each backend, until their retention ends by itself."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[str, dict[int, float]] = {}

    def __repr__(self) -> str:
        return f"<Holdings {self.counts()}>"

    def add(self, backend: str, keys: list[int], until: float) -> None:
        """Note that blocks are retained until some time."""
        self._until.setdefault(backend, {}).update(dict.fromkeys(keys, until))

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
        return {backend: len(blocks) for backend, blocks in self._until.items()}
