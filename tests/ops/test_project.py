"""The NumPy forms of project, project_add and gated_project against their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops.matmul.gemv import LAYOUTS
from sp.ops.matmul.project import gated_project, project, project_add
from sp.quant import Q4_K, Q6_K, Weight

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 512)).astype(np.float32)
NORM = RNG.uniform(0.5, 1.5, 512).astype(np.float32), 1e-6
WEIGHTS = [
    Weight.from_floats("w", RNG.standard_normal(shape).astype(np.float32), fmt)
    for shape, fmt in (((40, 512), Q4_K), ((72, 512), Q6_K), ((40, 512), Q6_K))
]
DENSE = [w.dense().astype(np.float64) for w in WEIGHTS]


def normed() -> np.ndarray:
    wide = X.astype(np.float64)
    return wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + NORM[1]) * NORM[0]


def test_project() -> None:
    for y, dense in zip(project(X, WEIGHTS, NORM), DENSE, strict=True):
        np.testing.assert_allclose(y, normed() @ dense.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(project(X, WEIGHTS[:1])[0], X @ DENSE[0].T, rtol=1e-4, atol=1e-4)


def test_project_add() -> None:
    stream = RNG.standard_normal((5, 40)).astype(np.float32)
    before = stream.copy()
    np.testing.assert_allclose(project_add(stream, X, WEIGHTS[0]), before + X @ DENSE[0].T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(stream, before)


def test_gated_project() -> None:
    gate, up = normed() @ DENSE[0].T, normed() @ DENSE[2].T
    want = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(gated_project(X, WEIGHTS[0], WEIGHTS[2], NORM), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("held", LAYOUTS)
def test_a_layout_fits_the_limits_of_every_gpu(held: int) -> None:
    for layout in LAYOUTS[held]:
        assert layout.warps * layout.groups <= 32
