"""The tile shape of the portable prefill matmul, and its number of splits."""

from __future__ import annotations

import pytest

from sp.kernels.specs.matmul import gemm_portable as declared
from sp.kernels.specs.matmul.epilogue import STORE
from sp.ops.matmul.gemm_portable import _plan

SHAPES = [(5120, 5120), (17408, 5120), (5120, 17408), (1024, 1024), (8, 64), (248320, 5120)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("processors", [16, 82, 132])
def test_plans_are_possible(shape, processors):
    for tokens in (1, 17, 64, 65, 500, 8192, 131072):
        for epilogue in declared.EPILOGUES:
            defines, parts = _plan(12, epilogue, tokens, shape, processors)
            tiles = declared.tiles(defines, tokens, shape[0])
            rows, width = declared.tile(defines)
            assert tiles * rows * width >= tokens * shape[0]
            assert 1 <= parts <= shape[1] // 64
            assert parts == 1 or tiles <= declared.MOST_TILES_IN_PARTS
            assert parts == 1 or tiles * parts * declared.sums(defines) * 4 <= 64 << 20
            assert declared.smem(defines) <= 99 << 10


def test_long_prompts_take_tall_tiles_and_few_tokens_share_them():
    assert _plan(12, STORE, 8192, (17408, 5120), 132) == (declared.variant(12, STORE, declared.TALL), 1)
    defines, parts = _plan(12, STORE, 20, (5120, 17408), 132)
    assert defines == declared.variant(12, STORE, declared.THIN)
    assert parts > 4
