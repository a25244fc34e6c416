"""Build a task that stores rows of heads in pages of plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.native.code import LANES
from sp.native.compiled import has_halves
from sp.native.heads import stored
from sp.native.team import Task, address, task
from sp.quant import F16, F32, BlockFormat

NOT_HELD = "F16: a key or value exceeds 65504, the largest this format can store; take a cache of f32"


def storing(pages: Bytes, table: Ints, start: int, values: Floats, fmt: BlockFormat, missed: Any) -> Task | None:
    """Return a task that stores `values`, float32 (tokens, kv_heads, head_dim), as `kv_append` does, in a format of
    plain numbers; None if NumPy has to do it. `missed`, int64 (1,), is set to 1 if a value does not fit, see
    `NOT_HELD`. All arrays have to live until the task is done."""
    tokens, kv_heads, head_dim = values.shape
    if fmt is F16 and not has_halves():
        return None
    if fmt not in (F16, F32) or head_dim % LANES or values.dtype != np.float32 or not tokens:
        return None
    assert values.flags.c_contiguous, f"values of strides {values.strides}"
    assert table.dtype == np.int64, f"a table of {table.dtype}"
    assert table.flags.c_contiguous, f"a table of strides {table.strides}"
    where = address(values), address(pages), address(table), address(missed), start, pages.shape[1], kv_heads
    return task(stored(fmt, head_dim).address, tokens * kv_heads, *where, alone=tokens == 1)
