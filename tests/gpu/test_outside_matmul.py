"""A matmul kernel from outside the package takes products on the device, its results those of float64."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from outside_matmul import outside_kernel

from sp.ops.matmul.packed import pack
from sp.ops.matmul.project import gated_project, project, project_add
from sp.quant import Q5_K, Q8_0, BlockFormat

K, EPS, BOUND = 512, 1e-6, 5e-5


def weight(fmt: BlockFormat, rows: int, seed: int) -> tuple[Any, np.ndarray]:
    packed = fmt.encode(np.random.default_rng(seed).standard_normal((rows, K)).astype(np.float32) * 0.05)
    return pack("w", fmt, (rows, K), cupy.asarray(packed)), fmt.decode(packed).astype(np.float64)


@pytest.mark.parametrize("tokens", [1, 7, 32, 33])
def test_products_take_it(tokens: int, guarded: Any, path: str) -> None:
    """Beside a weight of a format that it does not take; with a norm, which it does not fuse; SwiGLU goes elsewhere."""
    rng = np.random.default_rng(tokens)
    x, scale = rng.standard_normal((tokens, K)).astype(np.float32), rng.uniform(0.5, 1.5, K).astype(np.float32)
    parts = [weight(Q5_K, 200, 0), weight(Q8_0, 48, 1), weight(Q5_K, 136, 2)]
    norm = guarded(scale.shape, np.float32, scale), EPS
    normed = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + EPS) * scale
    stream = rng.standard_normal((tokens, 200)).astype(np.float32)
    h = to_bf16(x)
    with outside_kernel() as kernel:
        calls, run = [], kernel.run
        object.__setattr__(kernel, "run", lambda product: (calls.append(product.epilogue.name), run(product)))
        outs = project(guarded(x.shape, np.float32, x), [w for w, _ in parts], norm, f32=(False, True, True))
        added = project_add(guarded(stream.shape, np.float32, stream), guarded(h.shape, np.uint16, h), parts[0][0])
        gated = gated_project(guarded(x.shape, np.float32, x), parts[0][0], parts[0][0], norm)
    assert calls == (["STORE", "STORE", "ADD"] if tokens <= 32 else [])
    for (_, dense), out in zip(parts, outs, strict=True):
        assert nmse(out, normed @ dense.T) < BOUND
    assert nmse(added, stream + to_float64(h) @ parts[0][1].T) < BOUND
    gate = normed @ parts[0][1].T
    assert nmse(gated, gate / (1 + np.exp(-gate)) * gate) < BOUND
