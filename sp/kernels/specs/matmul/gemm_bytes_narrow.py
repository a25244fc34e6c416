"""Gate and up in int8 with up to 1,024 inputs. Defines: GROUPS of 256 inputs, STAGES; see the source."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.gemm_bytes import CAPACITY

MOST_GROUPS = 4  # most groups of 256 inputs, which a block holds in shared memory
TOKENS = 128  # tokens per block; a cluster has two blocks


def smem(defines: Defines) -> int:
    """Return the shared memory laid out by ``enum Shape`` in the source."""
    groups, stages = int(defines["GROUPS"]), int(defines["STAGES"])
    inputs, staging = 2 * groups * 128 * TOKENS, 2 * 64 * TOKENS
    return inputs + stages * 8192 + staging + groups * TOKENS * 4 + 16 * stages + 16


def variant(groups: int) -> dict[str, int]:
    """Return the shipped defines, with as many stages as fit, up to twelve."""
    defines = {"GROUPS": groups, "STAGES": 1}
    while defines["STAGES"] < 12 and smem(defines | {"STAGES": defines["STAGES"] + 1}) <= CAPACITY:
        defines["STAGES"] += 1
    return defines


GEMM_BYTES_NARROW_SM90 = KernelSpec(
    source="gemm_bytes_narrow_sm90.cu",
    entry="gemm_bytes_narrow_sm90",
    args=(
        "map x_map", "map w_map", "map xl_map", "map wl_map", "map y_map", "const f32* x_scales", "const f32* w_scales",
        "const u32* loud_count", "u32 token_blocks", "u32 jobs", "u32 each", "u32 out_tiles", "u32 second",
        "u32 x_stride", "u32 w_stride",
    ),
    threads=384,
    variants=tuple(variant(groups) for groups in range(1, MOST_GROUPS + 1)),
    arches="90a",
    smem=smem,
    pdl=True,
)  # fmt: skip
