"""DeviceTables: block tables and counts of a cache, where the kernels that read its pages are."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.specs.sequence import ADVANCE_COUNTS


class DeviceTables:
    """Mirrors, on the device, of what `Cache` counts on the host. `layers`: attention layers; a row each. `blocks`:
    most pages of a layer. `tables`: cupy int32 (layers, blocks). `counts`, cupy int32 (layers, 2): tokens before the
    last append, and with it. Only kernels change them, so a CUDA graph can."""

    def __init__(self, layers: int, blocks: int) -> None:
        cupy = import_cupy()
        self.tables = cupy.zeros((layers, blocks), np.int32)
        self.counts = cupy.zeros((layers, 2), np.int32)

    def grow(self, row: int, first: int, pages: list[int]) -> None:
        """Write the pages of a layer from block `first` on; not while a graph is captured."""
        if pages:
            part = self.tables[row, first : first + len(pages)]
            part.set(np.array(pages, np.int32), import_cupy().cuda.get_current_stream())

    def advance(self, tokens: int, row: int | None = None, more: Any = None) -> None:
        """Count `tokens` more, and what int32 (1,) `more` holds on the device, in one layer or in all."""
        counts = self.counts if row is None else self.counts[row : row + 1]
        ADVANCE_COUNTS.launch((-(-len(counts) // 64),), counts, len(counts), tokens, more)
