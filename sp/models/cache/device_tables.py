"""DeviceTables: block tables and token counts of a cache, on the device of the kernels that read its pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.specs.sequence import ADVANCE_COUNTS


class DeviceTables:
    """Device mirror of what `Cache` counts on the host. `layers`: attention layers, one row each. `blocks`: most pages
    of a layer. `tables`: cupy int32 (layers, blocks). `counts`, cupy int32 (layers, 2): tokens before the last append,
    and including it. Only kernels change them, so that a CUDA graph can too."""

    def __init__(self, layers: int, blocks: int) -> None:
        cupy = import_cupy()
        self.tables = cupy.zeros((layers, blocks), np.int32)
        self.counts = cupy.zeros((layers, 2), np.int32)

    def grow(self, row: int, first: int, pages: list[int]) -> None:
        """Write the pages of a layer from block `first` on; not allowed during a graph capture."""
        if pages:
            part = self.tables[row, first : first + len(pages)]
            part.set(np.array(pages, np.int32), import_cupy().cuda.get_current_stream())

    def advance(self, tokens: int, row: int | None = None, more: Any = None) -> None:
        """Count `tokens` more, plus the int32 (1,) `more` on the device, in one layer or in all."""
        counts = self.counts if row is None else self.counts[row : row + 1]
        ADVANCE_COUNTS.launch((-(-len(counts) // 64),), counts, len(counts), tokens, more)
