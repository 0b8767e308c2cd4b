"""Short names for the array types of the model's signatures."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
C64: TypeAlias = NDArray[np.complex64]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.signedinteger]
