"""Sizes that Python computes for the Hopper small_m kernel equal those of its source; plans fit and cover all work."""

from __future__ import annotations

from itertools import pairwise

import pytest
from static_checks import check_statically

from sp.kernels.flatten import flatten
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_small_m_sm90 import (
    CAPACITY,
    GROUPS,
    HELD,
    RESIDENT,
    chunks,
    input_bytes,
    slot_bytes,
    streamed,
    strip_tasks,
    variant,
)
from sp.ops.matmul.gemm_small_m_sm90 import STREAM_SLOTS, SUPER, plan_of
from sp.quant import format_bits, kernel_formats, packing_of

PRODUCTS = [
    (5120, (14, 12, 12, 12), (10240, 6144, 48, 48), STORE),
    (5120, (12, 12), (17408,), SWIGLU),
    (17408, (14,), (5120,), ADD),
    (6144, (12,), (5120,), ADD),
    (5120, (14,), (248320,), STORE),
    (256, (13,), (8,), STORE),
    (5120, (11, 21, 23, 13), (10240, 6144, 48, 48), STORE),
    (17408, (23,), (5120,), ADD),
]


@pytest.mark.parametrize(
    ("tokens", "kinds", "epilogue"),
    [(16, (12,), STORE), (32, (12, 13), STORE), (40, (12, 14), STORE), (56, (12,), ADD)],
)
@pytest.mark.nvrtc
def test_units_are_counted_as_they_are_laid_out(tokens: int, kinds: tuple[int, ...], epilogue: Epilogue) -> None:
    defines = variant(tokens, format_bits(*kinds), epilogue)
    text = flatten("gemm_small_m_sm90.cu")
    for fmt in kernel_formats():
        if fmt.packing.super:
            text += f"\nstatic_assert(Unit<{fmt.ggml_type}>::bytes == {fmt.packing.unit_bytes});\n"
    text += f"static_assert(SLOT == {slot_bytes(format_bits(*kinds))} && SLOT % 128 == 0 && MINIMA);\n"
    text += f"static_assert(STREAMED == (TOKENS > {RESIDENT}));\n"
    text += f"static_assert(STRIP_TASKS == {strip_tasks(tokens, epilogue)});\n"
    check_statically(text, "gemm_small_m_sm90.cu", defines, "90a")


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("processors", [1, 20, 114, 132])
@pytest.mark.parametrize(("k", "kinds", "rows", "epilogue"), PRODUCTS)
def test_a_plan_covers_the_product_and_fits(
    held: int, processors: int, k: int, kinds: tuple[int, ...], rows: tuple[int, ...], epilogue: Epilogue
) -> None:
    plan = plan_of(held, k, kinds, rows, epilogue, processors)
    assert plan.blocks * plan.slices <= max(processors, plan.slices)
    supers = k // SUPER
    starts = [supers * i // plan.slices for i in range(plan.slices + 1)]
    widths = [(end - start) * SUPER for start, end in pairwise(starts)]
    if not streamed(held):
        assert max(widths) == plan.width
        needed = max((end - 1) // 2 - start // 2 + 1 for start, end in pairwise(starts))
        assert needed <= chunks(plan.width, held)
    else:
        assert plan.slices == 1
        assert plan.width // SUPER in STREAM_SLOTS
    formats = format_bits(*kinds)
    ring = GROUPS * plan.depth * (slot_bytes(formats) + 16)
    assert input_bytes(plan.width, held, formats) + ring + 4 * (plan.places + 3) + 16 * GROUPS <= CAPACITY
    assert 1 <= plan.ahead <= plan.depth
    assert plan.depth >= 2
    # The kernel multiplies costs of a slice, KiB of weights, with workers in 32 bits, and every worker finds a unit.
    tiles, workers = (GROUPS, plan.blocks) if streamed(held) else (1, GROUPS * plan.blocks)
    costs = [packing_of(kind).unit_bytes // 1024 for kind in kinds]
    cost = sum(-(-n // (64 * tiles)) * each for n, each in zip(rows, costs, strict=False))
    stages = max(widths) // SUPER
    assert cost * stages * workers < 1 << 32
    assert workers == 1 or workers == GROUPS or cost * (min(widths) // SUPER) >= max(costs) * workers
