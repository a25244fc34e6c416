"""Copy outputs of a model's layers to the features of a draft model."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

THREADS = 128
EACH = 8  # values per thread

STORE_FEATURES = KernelSpec(
    source="feature_rows.cu",
    entry="store_features",
    args=("const f32* x", "u16* features", "i32 hidden", "i32 width", "i32 column"),
    threads=THREADS,
    pdl=True,
)

PICK_FEATURES = KernelSpec(
    source="feature_rows.cu",
    entry="pick_features",
    args=(
        "const u16* features", "const i64* positions", "const i32* path", "const i32* kept", "u16* y",
        "i64* y_positions", "i32 width",
    ),
    threads=THREADS,
    pdl=True,
)  # fmt: skip
