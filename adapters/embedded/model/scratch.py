"""Memory for what a step computes and nobody keeps."""

import math
import threading

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32


class Scratch(threading.local):
    """Arrays by name, used again and again: fresh memory costs a fault a page.

    Each thread has its own. What `take` returned is overwritten by the next taker of
    the same name.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, F32] = {}

    def __repr__(self) -> str:
        size = sum(room.nbytes for room in self._rooms.values())
        return f"<Scratch of {size} bytes: {', '.join(self._rooms)}>"

    def take(self, name: str, *shape: int) -> F32:
        """Return an array of *shape*, with anything in it."""
        size = math.prod(shape)
        room = self._rooms.get(name)
        if room is None or room.size < size:
            room = self._rooms[name] = np.empty(size, np.float32)
        return room[:size].reshape(shape)
