"""8-bit products on any GPU from compute capability 8.0, for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp.errors import DeviceError
from sp.kernels.specs.matmul.epilogue import ADD, STORE_F32, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import (
    GEMM_BYTES_PORTABLE,
    GEMM_BYTES_PORTABLE_F32,
    PORTABLE_BLOCK,
    PORTABLE_MOST_INPUTS,
    PORTABLE_STAGES,
    WIDE,
)
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteKind, ByteRows
from sp.ops.matmul.byte_products import byte_kernel, check_operands
from sp.quant import Math
from sp.quant.packing import TILE


def gemm(x: ByteRows, w: ByteRows, loud: LoudChannels, outs: Sequence[Any], epilogue: Epilogue) -> None:
    """The portable form of `sp.ops.matmul.gemm_bytes_sm90.gemm`; int8 only, and one launch for each of `outs`."""
    check_operands(x, w, outs, epilogue)
    if x.kind is not ByteKind.INT8:
        raise DeviceError(f"bytes: {x.kind.name} is multiplied on compute capability 9.0 alone")
    if x.rows == 0:
        return
    wide, block = epilogue in WIDE, PORTABLE_BLOCK // 2 if epilogue == SWIGLU else PORTABLE_BLOCK
    spec, more = (GEMM_BYTES_PORTABLE_F32, (int(epilogue == ADD),)) if wide else (GEMM_BYTES_PORTABLE, ())
    # The rows of all outputs are below each other in `w`, padded to whole tiles. Its codes and scales may be a part of
    # larger arrays, from row `w.first` on; `w.loud` has its own rows only.
    below = 0
    for out in outs:
        rows, first = out.shape[1], w.first + below
        spec.launch(
            (-(-x.rows // PORTABLE_BLOCK) * -(-rows // block),),
            x.codes,
            w.codes[first:],
            x.loud,
            w.loud[below:],
            x.scales,
            w.scales[first:],
            loud.count,
            out,
            x.rows,
            rows,
            -(-rows // TILE) * TILE,
            x.width,
            *more,
            defines={"EPILOGUE": STORE_F32 if wide else epilogue, "STAGES": PORTABLE_STAGES},
        )
        below += -(-rows // TILE) * TILE


byte_kernel("gemm_bytes_portable", gemm, "portable", (Math.INT8,), most_inputs=PORTABLE_MOST_INPUTS)
