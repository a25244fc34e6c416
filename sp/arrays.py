"""Array types named once, so that signatures stay short."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Int8s = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]
