"""Operations that read and write every value once, and a device copy as their upper bound."""

from __future__ import annotations

from collections.abc import Iterator

from sp.bench.cases import Case, bf16, family, normal
from sp.kernels import import_cupy
from sp.ops.activations import swiglu
from sp.ops.norms import rms_norm

HIDDEN, FFN = 5120, 17408


@family("rows")
def cases() -> Iterator[Case]:
    """Yield a norm and a gated activation of the 27B shape."""
    cupy = import_cupy()
    for rows in (64, 8192):
        x, weight = normal(rows, HIDDEN), cupy.ones(HIDDEN, cupy.float32)
        gate, up = bf16(rows, FFN), bf16(rows, FFN)
        yield Case(
            {"op": "rms_norm", "rows": rows, "cols": HIDDEN},
            "portable",
            lambda x=x, weight=weight: rms_norm(x, weight, 1e-6),  # type: ignore[misc]
            bytes=rows * HIDDEN * (4 + 2),
            graph=True,
        )
        yield Case(
            {"op": "swiglu", "rows": rows, "cols": FFN},
            "portable",
            lambda gate=gate, up=up: swiglu(gate, up),  # type: ignore[misc]
            bytes=rows * FFN * 3 * 2,
            graph=True,
        )


BYTES = 1 << 29


@family("memory")
def copy_cases() -> Iterator[Case]:
    """Yield a device-to-device copy; bytes are those read plus those written."""
    cupy = import_cupy()
    source, target = cupy.arange(BYTES // 4, dtype=cupy.int32), cupy.empty(BYTES // 4, cupy.int32)

    def copy() -> None:
        target.data.copy_from_device_async(source.data, BYTES, cupy.cuda.get_current_stream())

    yield Case({"copy": BYTES}, "cuda", copy, bytes=2 * BYTES)
