"""The shared memory of the kernel for a few tokens as Python counts it is what the source lays out; its division."""

from __future__ import annotations

import pytest
from static_checks import check_statically

from sp.kernels.flatten import flatten
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.kernels.specs.matmul.gemm_small_m import smem, variant
from sp.ops.matmul.gemm_small_m import passes, plan_of
from sp.quant import format_bits

CASES = [
    variant(2560, 16, format_bits(12), SWIGLU, 8, True),
    variant(1280, 24, format_bits(12, 14), STORE, 8, False),
    variant(1536, 32, format_bits(14), ADD, 4, True),
    variant(320, 16, format_bits(8, 30), STORE, 8, True, 99 << 10),
    variant(1280, 24, format_bits(11, 21, 23), STORE, 8, False),
    variant(320, 16, format_bits(3, 7, 39), STORE, 8, True, 99 << 10),
]


@pytest.mark.parametrize("defines", CASES, ids=lambda d: " ".join(f"{k}={v}" for k, v in d.items()))
@pytest.mark.nvrtc
def test_shared_memory_is_counted_as_it_is_laid_out(defines: dict[str, int]) -> None:
    assert defines["STAGES"] >= 2
    text = flatten("gemm_small_m.cu")
    text += f"\nstatic_assert(HEADS_AT + (HEADS ? 4 * WARPS * 32 * PIECE : 0) == {smem(defines)});\n"
    text += "static_assert(X_AT % 16 == 0 && SUMS_AT % 16 == 0 && HEADS_AT % 16 == 0 && SLOT % 16 == 0);\n"
    check_statically(text, "gemm_small_m.cu", defines, "80")


@pytest.mark.parametrize("held", [16, 24, 32])
@pytest.mark.parametrize("processors", [1, 20, 108, 132])
@pytest.mark.parametrize("capacity", [99 << 10, 163 << 10, 227 << 10])
def test_a_plan_covers_the_product_and_fits(held: int, processors: int, capacity: int) -> None:
    for k, kind, rows, epilogue in ((5120, 12, 17408, SWIGLU), (17408, 14, 5120, ADD), (1024, 30, 3072, STORE)):
        plan = plan_of(held, k, (kind,), (rows,), epilogue, processors, capacity)
        assert plan is not None
        assert smem(plan.defines) <= capacity
        assert plan.defines["STAGES"] >= 2
        assert int(plan.defines["WIDTH"]) * plan.slices >= k
        assert plan.blocks * plan.slices <= max(processors, plan.slices)


@pytest.mark.parametrize("tokens", range(1, 200))
def test_passes_cover_all_tokens(tokens: int) -> None:
    assert sum(passes(tokens)) == tokens
    assert max(passes(tokens)) <= 32
    assert len(passes(tokens)) == -(-tokens // 32)
