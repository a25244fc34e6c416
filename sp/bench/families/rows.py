"""Operations that read and write every value once: their bar is the card's memory."""

from __future__ import annotations

from collections.abc import Iterator

from sp.bench.cases import Case, family
from sp.bench.families.inputs import bf16, normal
from sp.kernels import import_cupy
from sp.ops.activations import swiglu
from sp.ops.norms import rms_norm

HIDDEN, FFN = 5120, 17408


@family("rows")
def cases() -> Iterator[Case]:
    """Norm and gated activation of the 27B shape."""
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
