"""Kernels of mixtures of experts besides their matrix products, and the products of few tokens (small_m).

Define of `ROUTE`: EACH, logits per lane; of `EXPERT_GATED` and `EXPERT_DOWN`: KIND (a ggml type id), WARPS, DEPTH,
TAIL, see their header; of `GATE_SLOTS` and `EXPERT_GATED`: CLAMPED, 1 for the gate of `clamped_swiglu`."""

from __future__ import annotations

from functools import partial

from sp.kernels.launch import Defines, KernelSpec
from sp.quant import MXFP4, Q4_K, Q6_K, Q8_0, packing_of

ROUTE_TOKENS = 4  # tokens per block, one per warp
MOST_EXPERTS = 512
MOST_USED = 32

ROUTE = KernelSpec(
    source="route.cu",
    entry="route",
    args=(
        "const f32* logits", "i32* experts", "f32* weights", "i32 tokens", "i32 count", "i32 used", "i32 normalised",
        "const f32*? bias",
    ),
    threads=32 * ROUTE_TOKENS,
    variants=tuple({"EACH": each} for each in (4, 8, 16)),
)  # fmt: skip

SORT_SLOTS = KernelSpec(
    source="sort_slots.cu",
    entry="sort_slots",
    args=(
        "const i32* experts", "i32* places", "i32* tiles", "u32* made", "i32 slots", "i32 count", "i32 block",
        "i32 widest",
    ),
    threads=1024,
)  # fmt: skip

SCATTER_ROWS = KernelSpec(
    source="expert_rows.cu",
    entry="scatter_rows",
    args=("const u16* h", "const i32* places", "u16* sorted", "i32 used", "i32 cols8"),
    threads=128,
)

COMBINE_ROWS = KernelSpec(
    source="expert_rows.cu",
    entry="combine_rows",
    args=(
        "const u16* y", "const i32* places", "const f32* weights", "const u16*? h", "const f32*? mix",
        "const u16*? shared", "f32* x", "i32 used", "i32 cols8",
    ),
    threads=128,
)  # fmt: skip

COMBINE_BIASED = KernelSpec(
    source="expert_rows.cu",
    entry="combine_biased",
    args=(*COMBINE_ROWS.args, "const i32* experts", "const f32* bias"),
    threads=128,
)

GATE_SLOTS = KernelSpec(
    source="gate_slots.cu",
    entry="gate_slots",
    args=(
        "const u16* gate", "const u16* up", "const f32*? gate_bias", "const f32*? up_bias", "const i32* experts",
        "const i32* places", "u16* mid", "i32 cols8",
    ),
    threads=128,
    variants=({"CLAMPED": 0}, {"CLAMPED": 1}),
)  # fmt: skip

STRIP_WARPS = 8
STRIP_DEPTH = 2
INPUT_BYTES = 544 + 32 + 64 + 16  # bytes per warp: 256 inputs as integers, their sums and their factor


def strip_variant(kind: int, stages: int, *, tail: bool = False) -> dict[str, int]:
    """Return the defines for a ggml type id and a block that reads so many K-chunks of 256 inputs; with `tail` the last
    is shorter."""
    depth = min(STRIP_DEPTH, -(-stages // STRIP_WARPS))
    return {"KIND": kind, "WARPS": STRIP_WARPS, "DEPTH": depth} | ({"TAIL": 1} if tail else {})


def _strip_smem(parts: int, defines: Defines) -> int:
    packing, warps = packing_of(int(defines["KIND"])), int(defines["WARPS"])
    ring = int(defines["DEPTH"]) * parts * packing.stage_bytes * (256 // packing.span)
    return warps * (ring + INPUT_BYTES) + 4 * warps * (16 * parts + 1)


_STRIPS = tuple(strip_variant(fmt.ggml_type, stages) for fmt in (Q4_K, Q6_K, Q8_0) for stages in (8, 16))

EXPERT_GATED = KernelSpec(
    source="expert_gated.cu",
    entry="expert_gated",
    args=(
        "const u16* h", "const i32* experts", "const u8* gate", "const u8* up", "u16* mid", "i32 used", "i32 supers",
        "u32 held", "u32 pitch", "u32 first", "u32 second", "i32 tail", "const f32*? gate_bias", "const f32*? up_bias",
    ),
    threads=32 * STRIP_WARPS,
    variants=(*_STRIPS, {**strip_variant(MXFP4.ggml_type, 12, tail=True), "CLAMPED": 1}),
    smem=partial(_strip_smem, 2),
    pdl=True,
)  # fmt: skip

EXPERT_DOWN = KernelSpec(
    source="expert_down.cu",
    entry="expert_down",
    args=(
        "const u16* mid", "const i32* experts", "const f32* weights", "const u8* down", "const u16*? h",
        "const f32*? mix", "const u16*? shared_y", "f32* x", "i32 used", "i32 supers", "u32 held", "u32 pitch",
        "i32 wide", "i32 tail", "const f32*? bias",
    ),
    threads=32 * STRIP_WARPS,
    variants=(*_STRIPS, strip_variant(MXFP4.ggml_type, 48, tail=True)),
    smem=partial(_strip_smem, 1),
    pdl=True,
)  # fmt: skip
