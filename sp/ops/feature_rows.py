"""Collect outputs of a model's layers as features of a draft model, and select those of an accepted path."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.feature_rows import EACH, PICK_FEATURES, STORE_FEATURES, THREADS


def store_features(x: Floats, features: Floats, column: int) -> None:
    """Copy the outputs of a layer to their columns: ``features[:, column : column + hidden] = x``. `x`: float32
    (tokens, hidden); `features`: float32 (tokens, width), on the device bf16 (uint16); `column`: on the device a
    multiple of 8, as are hidden and width.

    >>> features = np.zeros((1, 4), np.float32)
    >>> store_features(np.ones((1, 2), np.float32), features, 2)
    >>> features
    array([[0., 0., 1., 1.]], dtype=float32)
    """
    (tokens, hidden), width = x.shape, features.shape[1]
    assert len(features) == tokens, f"x {x.shape}, features {features.shape}"
    assert 0 <= column <= width - hidden, f"x {x.shape}, features {features.shape}, column {column}"
    if not is_device(x):
        features[:, column : column + hidden] = x
        return
    assert hidden % EACH == width % EACH == column % EACH == 0, f"x {x.shape}, features {features.shape}, {column}"
    if tokens:
        STORE_FEATURES.launch((_runs(hidden), tokens), x, features, hidden, width, column)


def pick_features(features: Any, positions: Any, path: Any, kept: Any, rows: int) -> tuple[Any, Any]:
    """Select features and positions of the accepted nodes of a tree, on the device, which alone knows their number.
    `features`: bf16 (nodes, width); `positions`: int64 (nodes,); `path`: int32 (rows or more,), of which the first
    `kept` are read; `kept`: int32 (1,), at most `rows`; `rows`: rows of the results; those from `kept` on are 0.
    Returns `features`: bf16 (rows, width); `positions`: int64 (rows,)."""
    cupy, width = import_cupy(), features.shape[1]
    assert len(positions) == len(features), f"features {features.shape}, positions {positions.shape}"
    assert len(path) >= rows, f"a path of up to {len(path)} nodes, {rows} rows"
    assert width % EACH == 0, f"features {features.shape}"
    picked, where = cupy.empty((rows, width), np.uint16), cupy.empty(rows, np.int64)
    PICK_FEATURES.launch((_runs(width), rows), features, positions, path, kept, picked, where, width)
    return picked, where


def _runs(width: int) -> int:
    return -(-width // (EACH * THREADS))
