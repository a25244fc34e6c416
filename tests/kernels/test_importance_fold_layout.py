"""importance_fold and importance_heat on emulated blocks, of weights that are given, against the reduction in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.ops.attention.importance import Reduction, fold_defines, fold_weights

RUN = """
extern "C" void run(const f32* scores, f32* running, f32* by_layer, f32* by_head, i32 n, i32 tokens, i32 heads,
                    i32 pitch, i32 first) {
    const int tile = THREADS - WIDTH + 1, chunks = (tokens + 31) / 32;
    gridDim = {unsigned((tokens + tile - 1) / tile), unsigned(QUERIES_FIRST ? 1 : n), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
            run_block(THREADS, [=] { importance_fold(scores, nullptr, running, n, tokens, heads, pitch, first); });
    gridDim = {unsigned((chunks + 7) / 8), 1, 1};
    blockIdx.y = 0;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        run_block(THREADS, [=] { importance_heat(scores, nullptr, by_layer, by_head, n, tokens, heads, pitch); });
}
"""
WAYS = [
    Reduction("queries,pool,heads", pool=7),
    Reduction("pool,heads,queries", "mean", pool=13, edges="zero"),
    Reduction("queries,heads,pool", "max", "max", pool=5),
]


@pytest.mark.parametrize("reduction", WAYS, ids=lambda way: way.order)
@pytest.mark.parametrize("sign", [1, -1])
def test_given_weights_of_either_sign(reduction: Reduction, sign: int, tmp_path: Path) -> None:
    rng, (heads, n, tokens, pitch) = np.random.default_rng(3), (3, 4, 517, 640)
    held = aligned(np.full((heads, n, pitch), np.nan, np.float32))
    given, rows = held[..., :tokens], 1 if fold_defines(reduction)["QUERIES_FIRST"] else n
    code = hosted("importance_fold.cu", RUN, tmp_path / "run", **fold_defines(reduction), GIVEN=1)
    running, want = aligned(np.full((rows + 1, tokens), np.nan, np.float32)), None
    for layer in range(2):
        given[:] = sign * rng.random((heads, n, tokens)) ** 4
        by_layer, by_head = (aligned(np.full(shape, np.nan, np.float32)) for shape in ((17,), (heads, 17)))
        code.run(*map(pointer, (held, running, by_layer, by_head)), n, tokens, heads, pitch, int(layer == 0))
        actual = fold_weights(given.astype(np.float64), reduction, want, by_head=True)
        want = actual.running
        np.testing.assert_allclose(running[:rows], want, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(by_layer, actual.by_layer, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(by_head, actual.by_head, rtol=2e-5, atol=1e-6)
    assert np.isnan(running[rows:]).all()
