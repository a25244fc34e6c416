"""gemm_bytes_portable: products of bytes on any card from compute capability 8.0, for prompts."""

from __future__ import annotations

from typing import Any

from sp.errors import DeviceError
from sp.kernels.specs.matmul.epilogue import ADD, STORE_F32, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import (
    GEMM_BYTES_PORTABLE,
    GEMM_BYTES_PORTABLE_F32,
    PORTABLE_BLOCK,
    PORTABLE_STAGES,
    WIDE,
)
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteKind, ByteRows
from sp.ops.matmul.byte_products import byte_kernel
from sp.quant import Math
from sp.quant.packing import TILE


def gemm(
    x: ByteRows,
    w: ByteRows,
    first: int,
    rows: int,
    loud: LoudChannels,
    out: Any,
    epilogue: Epilogue,
    peaks: Any = None,
) -> None:
    """See `sp.ops.matmul.gemm_bytes_sm90.gemm`; of int8 alone, and without peaks."""
    assert peaks is None, "peaks are found by another kernel"
    wide = epilogue in WIDE
    if (x.width, x.kind, w.kind) != (w.width, ByteKind.INT8, ByteKind.INT8) or out.shape != (x.rows, rows):
        raise DeviceError(f"bytes: inputs {x.rows, x.width}, weights {rows, w.width}, out {out.dtype} {out.shape}")
    if out.dtype != ("float32" if wide else "uint16") or rows % 8 or first % TILE or not out.flags.c_contiguous:
        raise DeviceError(f"bytes: {rows} outputs from {first} on: multiples of 8 and of {TILE}; out {out.dtype}")
    if x.rows == 0:
        return
    outs = PORTABLE_BLOCK // 2 if epilogue == SWIGLU else PORTABLE_BLOCK
    spec, more = (GEMM_BYTES_PORTABLE_F32, (int(epilogue == ADD),)) if wide else (GEMM_BYTES_PORTABLE, ())
    spec.launch(
        (-(-x.rows // PORTABLE_BLOCK) * -(-rows // outs),),
        x.codes,
        w.codes[first:],
        x.loud,
        w.loud[first:],
        x.scales,
        w.scales.reshape(-1)[first:],
        loud.count,
        out,
        x.rows,
        rows,
        -(-rows // TILE) * TILE,
        x.width,
        x.scales.shape[1],
        w.scales.shape[1],
        *more,
        defines={"EPILOGUE": STORE_F32 if wide else epilogue, "STAGES": PORTABLE_STAGES},
    )


byte_kernel("gemm_bytes_portable", gemm, "portable", (Math.INT8,), peaks=False)
