"""Products of few rows in memory full of NaN, at the smallest widths: all that a kernel reads has been written.

Whatever an operation takes for itself (input tiles, partial sums, results) and the padding of weights are NaN before.
Against float64; bounds on the NMSE as in `test_project.py`.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from file_rows import file_rows

from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.matmul.project import gated_project, project, project_add, project_add_before
from sp.quant import BlockFormat, kernel_formats

BOUND, EPS = 5e-5, 1e-6
TOKENS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64)


@pytest.fixture(autouse=True)
def _poisoned() -> None:
    """What is given out next was full of NaN."""
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.full(1 << 28, 0xFF, cupy.uint8)


def weight(fmt: BlockFormat, rows: int, width: int, seed: int) -> tuple[PackedWeight, np.ndarray]:
    some = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32) * 0.05
    packed = file_rows(fmt, some)
    return pack("w", fmt, (rows, width), cupy.asarray(packed)), fmt.decode(packed).astype(np.float64)


def normed(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide * wide, axis=1, keepdims=True) + EPS) * by


@pytest.mark.parametrize("fmt", kernel_formats(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("hidden", [256, 512])
def test_products_in_poisoned_memory(hidden: int, fmt: BlockFormat, path: str) -> None:
    """A layer's: q and k of a normed stream, gate and up, down; the latter also as it begins the norm that is next."""
    ffn, (q, k) = 3 * hidden, (weight(fmt, rows, hidden, seed) for seed, rows in enumerate((2 * hidden, 72)))
    (gate, g), (up, u) = (weight(fmt, ffn, hidden, seed) for seed in (2, 3))
    down, d = weight(fmt, hidden, ffn, 4)
    errors: dict[str, float] = {}

    def held(what: str, got: Any, want: np.ndarray) -> None:
        errors[what] = nmse(got, want)

    for tokens in TOKENS:
        rng = np.random.default_rng(tokens)
        x = rng.standard_normal((tokens, hidden)).astype(np.float32)
        by = rng.uniform(0.5, 1.5, hidden).astype(np.float32)
        h, norm = to_bf16(rng.standard_normal((tokens, ffn))), (cupy.asarray(by), EPS)
        wanted = normed(x, by)
        for (_, dense), out in zip((q, k), project(cupy.asarray(x), (q[0], k[0]), norm), strict=True):
            held(f"{tokens} rows, {out.shape[1]} outputs of a norm", out, wanted @ dense.T)
        a, b = wanted @ g.T, wanted @ u.T
        silu = a / (1 + np.exp(-a)) * b
        held(f"{tokens} rows, gated", gated_project(cupy.asarray(x), gate, up, norm), silu)
        added = x + to_float64(h) @ d.T
        held(f"{tokens} rows, added", project_add(cupy.asarray(x), cupy.asarray(h), down), added)
        stream, then = project_add_before(cupy.asarray(x), cupy.asarray(h), down, norm)
        held(f"{tokens} rows, added before a norm", stream, added)
        (out,) = project(stream, (q[0],), then)
        held(f"{tokens} rows, of a norm begun", out, normed(added, by) @ q[1].T)
        middle = gated_project(cupy.asarray(x), gate, up, norm, reader=down)
        held(f"{tokens} rows, gated and added", project_add(cupy.asarray(x), middle, down), x + silu @ d.T)
    wrong = {what: error for what, error in errors.items() if not error < BOUND}
    assert not wrong, f"{fmt.name}, {hidden} inputs: {wrong}"
