"""Arrays that processes share with those that they fork."""

import math
import mmap

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32


def shared_zeros(*shape: int) -> F32:
    """Return an array of *shape* in memory that a fork does not copy.

    Raises:
        OSError, OverflowError, ValueError: The memory is not to be had.
    """
    size = math.prod(shape)
    room = mmap.mmap(-1, size * np.dtype(np.float32).itemsize)
    return np.frombuffer(room, np.float32).reshape(shape)
