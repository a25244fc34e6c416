"""The Hopper matmul's shared memory as Python counts it is what the source lays out; how its work is divided."""

from __future__ import annotations

import pytest
from static_checks import check_statically

from sp.kernels.flatten import flatten
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_sm90 import CAPACITY, GEMM_SM90, smem, stage_bytes, variant
from sp.ops.matmul.gemm_sm90 import plan_of
from sp.quant import packing_of

CASES = [
    variant(12, STORE, 256),
    variant(14, ADD, 256, 1),
    variant(13, SWIGLU, 128, 1),
    variant(8, STORE_F32, 128),
    variant(30, STORE, 256, slots=4),
    variant(11, STORE, 256),
    variant(39, ADD, 128, 1),
]


@pytest.mark.parametrize("defines", CASES, ids=lambda d: " ".join(f"{k}={v}" for k, v in d.items()))
@pytest.mark.nvrtc
def test_shared_memory_is_counted_as_it_is_laid_out(defines: dict[str, int]) -> None:
    text = flatten("gemm_sm90.cu") + f"\nstatic_assert(BARRIER_OFFSET + 16 * STAGES == {smem(defines)});\n"
    plain = int(packing_of(int(defines["FORMAT"])).plain)
    text += f"static_assert(STAGE_BYTES == {stage_bytes(defines)} && F::plain == {plain});\n"
    check_statically(text, "gemm_sm90.cu", defines, "90a")


def test_variants_fit_with_enough_stages() -> None:
    for defines in GEMM_SM90.variants:
        assert smem(defines) <= CAPACITY
        assert int(defines["STAGES"]) >= 4, defines


@pytest.mark.parametrize("epilogue", [STORE, SWIGLU])
@pytest.mark.parametrize("tokens", [1, 100, 129, 1000, 8192])
@pytest.mark.parametrize("row_tiles", [1, 3, 80, 272])
@pytest.mark.parametrize("k_tiles", [1, 16, 272])
def test_plans_cover_the_product(epilogue: Epilogue, tokens: int, row_tiles: int, k_tiles: int) -> None:
    plan = plan_of(12, epilogue, tokens, row_tiles, k_tiles, 132)
    rows = int(plan.defines["CLUSTER"]) * (1 if epilogue == SWIGLU else 2)
    tiles = plan.token_blocks * plan.out_blocks
    assert 0 <= plan.token_blocks * int(plan.defines["TOKENS"]) - tokens < int(plan.defines["TOKENS"])
    assert 0 <= plan.out_blocks * rows - row_tiles < rows
    assert 1 <= plan.clusters * int(plan.defines["CLUSTER"]) <= 132
    assert plan.streamed <= tiles
    assert (plan.streamed > 0) == (plan.defines["STREAM"] == 1)
    if plan.streamed:  # every cluster has a part, and the tiles that are not shared go round evenly
        assert plan.clusters <= plan.streamed * k_tiles
        assert (tiles - plan.streamed) % plan.clusters == 0
