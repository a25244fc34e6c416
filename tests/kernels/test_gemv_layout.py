"""The decode kernel's shared memory as Python counts it is what the source lays out."""

from __future__ import annotations

import pytest
from static_checks import check_statically

from sp.kernels.flatten import flatten
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.kernels.specs.matmul.gemv import Layout, smem, variant
from sp.ops.matmul import gemv as module
from sp.quant import format_bits

CASES = [
    variant(5120, 1, format_bits(12, 14), True, STORE, Layout(8, 3)),
    variant(5120, 1, format_bits(12), True, SWIGLU, Layout(6, 2), 113 << 10),
    variant(17408, 1, format_bits(14), False, ADD, Layout(8, 3)),
    variant(17408, 1, format_bits(12, 14), False, ADD, Layout(8, 3), split=2),
    variant(1280, 1, format_bits(12, 8), True, STORE, Layout(8, 2)),
    variant(192, 1, format_bits(8), False, STORE, Layout(8, 2)),
    variant(5120, 8, format_bits(12, 14), True, STORE, Layout(8, 2)),
    variant(1024, 16, format_bits(13, 30), True, SWIGLU, Layout(8, 1)),
    variant(576, 4, format_bits(2, 1), False, ADD, Layout(8, 1)),
    variant(5120, 1, format_bits(11, 21, 23), True, STORE, Layout(8, 3)),
    variant(5120, 1, format_bits(23), True, SWIGLU, Layout(8, 3)),
    variant(17408, 1, format_bits(20), False, ADD, Layout(8, 3), split=2),
    variant(17408, 1, format_bits(13), False, ADD, Layout(4, 5), split=2),
    variant(1280, 1, format_bits(3, 6, 8), True, STORE, Layout(8, 2)),
    variant(896, 1, format_bits(6, 7, 20, 39), True, STORE, Layout(8, 2)),
    variant(5120, 8, format_bits(11, 13, 21), True, STORE, Layout(8, 2)),
    variant(512, 16, format_bits(3, 7, 39), True, SWIGLU, Layout(8, 1)),
    variant(1280, 1, format_bits(39), False, ADD, Layout(8, 2)),
    variant(1280, 1, format_bits(21), False, ADD, Layout(8, 2)),
]


@pytest.mark.parametrize("defines", CASES, ids=lambda d: " ".join(f"{k}={v}" for k, v in d.items()))
@pytest.mark.nvrtc
def test_shared_memory_is_counted_as_it_is_laid_out(defines: dict[str, int]) -> None:
    assert defines["STAGES"] >= 2
    text = flatten("gemv.cu") + f"\nstatic_assert(FACTOR_AT + 4 * TOKENS == {smem(defines)});\n"
    text += "static_assert(SLOT * STAGES * ALL_WARPS == X_AT && X_AT % 16 == 0 && PARTIAL_AT % 16 == 0);\n"
    check_statically(text, "gemv.cu", defines, "80")


@pytest.mark.parametrize(
    ("k", "few", "compute", "want"),
    [
        (17408, True, (9, 0), (4, 5, 2)),
        (17408, False, (9, 0), (8, 3, 2)),
        (17408, True, (8, 0), (8, 3, 1)),
        (6144, True, (9, 0), (8, 2, 1)),
    ],
)
def test_strips_that_are_all_under_way_at_once_are_shared_by_more_groups(
    k: int, few: bool, compute: tuple[int, int], want: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "shared_bytes_per_block", lambda device: 227 << 10)
    monkeypatch.setattr(module, "capability", lambda device: compute)
    layout = module._variant.__wrapped__(1, k, (12,), False, ADD, 0, few)
    assert layout is not None
    assert (layout["WARPS"], layout["GROUPS"], layout["SPLIT"]) == want
    assert layout["K"] == k // want[2]
