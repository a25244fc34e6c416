"""Gated DeltaNet over a tree of nodes, and the update of all states along one of its paths."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

NODES = (16, 24, 32, 64)  # capacities for which `DELTA_TREE` is compiled


def tree_smem(defines: Defines) -> int:
    """Return the bytes of two f16 parts of k and q; numbers of the nodes; v; S^T q and products between nodes, or
    before these the inputs."""
    nodes, dim, parts = int(defines["NODES"]), int(defines["HEAD_DIM"]), int(defines["PARTS"])
    line = dim // parts + 16 // parts
    after = nodes * line * 4 + nodes * (2 * nodes + 4) * 4
    before = 3 * (3 + nodes) * dim * 2
    return 8 * nodes * (dim + 8) + 36 * nodes + 16 + 4 * nodes * line + max(after, before)


DELTA_TREE = KernelSpec(
    source="delta_tree.cu",
    entry="delta_tree",
    args=(
        "const u16* x", "const u16* z", "const f32* alpha", "const f32* beta", "const f32* taps", "const f32* a",
        "const f32* dt_bias", "const f32* norm", "const f32* history", "const f32* state", "const u64* seen", "u16*? y",
        "u8*? tiles", "i32 held", "f32* keys", "f32* added", "f32* decays", "u16* inputs", "i32 nodes", "i32 key_heads",
        "i32 value_heads", "f32 eps",
    ),
    threads=lambda defines: 2 * int(defines["HEAD_DIM"]) + 12 * 32,
    variants=tuple(
        {"HEAD_DIM": dim, "NODES": nodes, "PARTS": parts}
        for dim, parts in ((128, 2), (128, 1), (64, 1))
        for nodes in NODES
    ),
    smem=tree_smem,
    pdl=True,
)  # fmt: skip

DELTA_COMMIT = KernelSpec(
    source="delta_commit.cu",
    entry="delta_commit",
    args=(
        "const u64* memories", "const f32* keys", "const f32* added", "const f32* decays", "const u16* inputs",
        "const i32* path", "const i32* kept", "i32 nodes", "i32 key_heads", "i32 value_heads",
    ),
    threads=lambda defines: 2 * int(defines["HEAD_DIM"]),
    variants=({"HEAD_DIM": 128}, {"HEAD_DIM": 64}),
)  # fmt: skip
