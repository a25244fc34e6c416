"""gemm_int8 and gated_int8: products of quantised inputs with packed weights on the device, compute capability 8.0 on.

Nothing chooses them yet: who wants eight bits calls them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.launch import Defines
from sp.kernels.specs.matmul import gemm_int8 as declared
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU, Epilogue
from sp.ops.eight_bit.inputs import Int8Tiles
from sp.ops.matmul.packed import PackedWeight
from sp.quant.packing import TILE


def gemm_int8(x: Int8Tiles, w: PackedWeight, out: Any, epilogue: Epilogue) -> None:
    """``out = x Wᵀ``, or ``out += x Wᵀ``; see `sp.ops.eight_bit.product.product` for the sums.

    Parameters
    ----------
    x : Int8Tiles (tokens, in)
        From `sp.ops.eight_bit.inputs.quantise`.
    w : PackedWeight of shape (out, in)
        Of a format with integer codes; out a multiple of 8.
    out : cupy (tokens, out)
        bf16 as uint16 for STORE, float32 for STORE_F32 and ADD.
    epilogue : STORE, STORE_F32 or ADD

    Raises
    ------
    DeviceError
        Where formats or shapes do not fit.

    Examples
    --------
    >>> from sp.ops.eight_bit.inputs import quantise
    >>> def product(x, w):  # x cupy float32 (tokens, in), w PackedWeight
    ...     out = import_cupy().empty((len(x), w.shape[0]), "uint16")
    ...     gemm_int8(quantise(x), w, out, STORE)
    ...     return out
    """
    _check(x, w, out)
    if epilogue not in (STORE, STORE_F32, ADD):
        raise DeviceError(f"gemm_int8 {w.name}: epilogue must be STORE, STORE_F32 or ADD, not {epilogue!r}")
    held = x.codes.shape[1]
    defines, grid = _variant(w, STORE_F32 if epilogue == ADD else epilogue, x.tokens)
    given = (x.codes, x.pairs, *_weight(w), out, x.tokens, held, *w.shape)
    if epilogue == STORE:
        declared.BF16.launch(grid, *given, defines=defines)
    else:
        declared.F32.launch(grid, *given, int(epilogue == ADD), defines=defines)


def gated_int8(x: Int8Tiles, gate: PackedWeight, up: PackedWeight, out: Any) -> None:
    """``out = silu(x Gᵀ) * (x Uᵀ)``, both products in one kernel.

    Parameters
    ----------
    x : Int8Tiles (tokens, in)
    gate, up : PackedWeights of one format and shape (ffn, in)
        As in `gemm_int8`.
    out : cupy bf16 as uint16 (tokens, ffn)

    Raises
    ------
    DeviceError
        Where formats or shapes do not fit.
    """
    _check(x, gate, out)
    if (gate.format, gate.shape) != (up.format, up.shape):
        raise DeviceError(
            f"{gate.name} is {gate.format.name} {gate.shape}, {up.name} is {up.format.name} {up.shape}: "
            "one kernel multiplies by both only when they are alike"
        )
    held = x.codes.shape[1]
    defines, grid = _variant(gate, SWIGLU, x.tokens)
    given = (*_weight(gate), *_weight(up), out, x.tokens, held, *gate.shape)
    declared.GATED.launch(grid, x.codes, x.pairs, *given, defines=defines)


def integer_scales(w: PackedWeight) -> Any:
    """Scales as the kernel reads them, cupy float32, in the order of `sp.ops.eight_bit.integer_form.scale_words`."""
    count = w.row_tiles * w.k_tiles * TILE
    words = import_cupy().empty(4 * count, "float32")
    grid = -(-count // declared.INTEGER_SCALES.block({}))
    defines = {"FORMAT": w.format.ggml_type}
    declared.INTEGER_SCALES.launch((grid,), w.plane("scales"), w.plane("deltas"), words, count, defines=defines)
    return words


def _check(x: Int8Tiles, w: PackedWeight, out: Any) -> None:
    rows, width = w.shape
    if not declared.is_native(w.packing):
        raise DeviceError(f"gemm_int8 {w.name}: {w.format.name} has no integer codes of up to a byte")
    if x.width != width or out.shape != (x.tokens, rows):
        raise DeviceError(f"gemm_int8 {w.name} {w.shape}: x {(x.tokens, x.width)} and out {out.shape} do not fit")
    if rows % 8:
        raise DeviceError(f"gemm_int8 {w.name}: {rows} outputs are not a multiple of 8")


def _weight(w: PackedWeight) -> tuple[Any, Any, Any]:
    return w.plane("low"), w.plane("high"), integer_scales(w)


def _variant(w: PackedWeight, epilogue: Epilogue, tokens: int) -> tuple[Defines, tuple[int]]:
    """Defines and grid."""
    return _plan(w.format.ggml_type, epilogue, tokens, w.shape[0], multiprocessors(current_device()))


@lru_cache(4096)
def _plan(kind: int, epilogue: Epilogue, tokens: int, rows: int, processors: int) -> tuple[Defines, tuple[int]]:
    """The tiles whose rounds over the card have the least rows times tokens in all."""
    best: tuple[int, Defines, int] | None = None
    for shape in declared.SHAPES:
        defines = declared.variant(kind, epilogue, shape)
        block_rows, block_tokens = declared.tile(defines)
        tiles, blocks = -(-rows // block_rows) * -(-tokens // block_tokens), int(shape["BLOCKS"])
        work = -(-tiles // (processors * blocks)) * blocks * block_rows * block_tokens
        if best is None or work < best[0]:
            best = work, defines, tiles
    assert best is not None, "no shapes"
    return best[1], (best[2],)
