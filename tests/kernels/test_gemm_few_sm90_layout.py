"""What Python counts for the Hopper kernel for few tokens is what the source lays out; its plans fit and cover."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sp.kernels import nvrtc
from sp.kernels.declared.gemm_few_sm90 import (
    ADD,
    CAPACITY,
    GROUPS,
    HELD,
    STORE,
    SWIGLU,
    UNIT_BYTES,
    bits,
    input_bytes,
    slot_bytes,
    variant,
)
from sp.kernels.flatten import flatten
from sp.ops.gemm_few_sm90 import SUPER, plan_of

PRODUCTS = [
    (5120, (14, 12, 12, 12), (10240, 6144, 48, 48), STORE),
    (5120, (12, 12), (17408,), SWIGLU),
    (17408, (14,), (5120,), ADD),
    (6144, (12,), (5120,), ADD),
    (5120, (14,), (248320,), STORE),
    (256, (13,), (8,), STORE),
]


@pytest.mark.parametrize("kinds", [(12,), (12, 13), (12, 14)])
def test_units_are_counted_as_they_are_laid_out(kinds: tuple[int, ...]) -> None:
    pytest.importorskip("cupy")
    defines = variant(16, bits(*kinds), STORE)
    text = flatten("gemm_few_sm90.cu")
    for kind, nbytes in UNIT_BYTES.items():
        text += f"\nstatic_assert(Unit<{kind}>::bytes == {nbytes});\n"
    text += f"static_assert(SLOT == {slot_bytes(bits(*kinds))} && SLOT % 128 == 0 && MINIMA);\n"
    nvrtc.compile_cubin(text, "gemm_few_sm90.cu", nvrtc.compile_options(defines, "90a"))


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("processors", [1, 20, 114, 132])
@pytest.mark.parametrize(("k", "kinds", "rows", "epilogue"), PRODUCTS)
def test_a_plan_covers_the_product_and_fits(
    held: int, processors: int, k: int, kinds: tuple[int, ...], rows: tuple[int, ...], epilogue: int
) -> None:
    plan = plan_of(held, k, kinds, rows, epilogue, processors)
    assert plan.blocks * plan.slices <= max(processors, plan.slices)
    supers = k // SUPER
    starts = [supers * i // plan.slices for i in range(plan.slices + 1)]
    widths = [(end - start) * SUPER for start, end in pairwise(starts)]
    assert max(widths) == plan.width
    formats = bits(*kinds)
    ring = GROUPS * plan.depth * (slot_bytes(formats) + 16)
    chunks = max((end - 1) // 2 - start // 2 + 1 for start, end in pairwise(starts))
    assert chunks <= plan.width // 512 + 1
    assert input_bytes(plan.width, held, formats) + ring + 8 * chunks + 4 * (plan.places + 3) + 16 * GROUPS <= CAPACITY
    assert 1 <= plan.ahead <= plan.depth
    assert plan.depth >= 2
    # The kernel multiplies costs of a slice, KiB of weights, with workers in 32 bits.
    cost = sum(-(-n // 64) * (UNIT_BYTES[kind] // 1024) for n, kind in zip(rows, kinds, strict=False))
    assert cost * (plan.width // SUPER) * plan.blocks * GROUPS < 1 << 32
