"""Interleave queries and gates of separate matrices, into the layout of one matrix for both."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.query_rows import BESIDE_GATE, QUERY_THREADS, VALUES


def beside_gate(q: Floats, gate: Floats) -> Floats:
    """Concatenate each head's queries and its gate: float32 (tokens, heads, 2 d), on the device bf16 (uint16).

    Parameters ---------- q, gate : float32 (tokens, heads, d), on the device bf16 (uint16), d a multiple of 8

    Examples
    --------
    >>> beside_gate(np.array([[[1.0], [2.0]]]), np.array([[[3.0], [4.0]]])).tolist()
    [[[1.0, 3.0], [2.0, 4.0]]]
    """
    assert q.shape == gate.shape, f"q {q.shape}, gate {gate.shape}"
    if not is_device(q):
        return np.concatenate([q, gate], axis=2)
    tokens, heads, d = q.shape
    assert d % VALUES == 0, f"q {q.shape}"
    wide: Floats = import_cupy().empty((tokens, heads, 2 * d), np.uint16)
    steps = q.size // VALUES
    BESIDE_GATE.launch((-(-steps // QUERY_THREADS),), q, gate, wide, steps, defines={"STEPS": d // VALUES})
    return wide
