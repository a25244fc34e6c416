"""Files as the `gguf` package reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader


def read_by_gguf(path: Path) -> GGUFReader:
    """Its reader over plain memory, for it cuts tens of thousands of pieces, and a map of a file is slow to cut."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(np, "memmap", lambda path, mode: np.fromfile(path, np.uint8))
        return GGUFReader(path)
