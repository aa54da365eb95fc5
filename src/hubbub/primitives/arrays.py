"""The kinds of arrays that are passed around, by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
