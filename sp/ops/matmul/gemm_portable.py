"""The prefill GEMM on any GPU from compute capability 8.0, with split-K if there are few tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.kept import cache
from sp.kernels.launch import Defines
from sp.kernels.specs.matmul import gemm_portable as declared
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU, Epilogue
from sp.ops.matmul.packed import PackedWeight, expand_scales
from sp.ops.matmul.registry import MatmulKernel, Product, register_matmul
from sp.quant.packing import TILE


def gemm(x: Any, w: PackedWeight, out: Any, epilogue: Epilogue) -> None:
    """``out = x Wᵀ``, or ``out += x Wᵀ``. `x`: bf16 as uint16 (tokens, in); `w`: PackedWeight of shape (out, in); out a
    multiple of 8; `out`: (tokens, out), bf16 as uint16 for STORE, float32 for STORE_F32 and ADD; `epilogue`: STORE,
    STORE_F32 or ADD."""
    tokens = _checked(x, w, out)
    if epilogue not in (STORE, STORE_F32, ADD):
        raise DeviceError(f"gemm {w.name}: epilogue must be STORE, STORE_F32 or ADD, not {epilogue!r}")
    add = epilogue == ADD
    defines, grid, space = _variant(w, STORE_F32 if add else epilogue, tokens)
    if epilogue == STORE:
        declared.BF16.launch(grid, x, *_planes(w), out, *space, tokens, *w.shape, defines=defines)
    else:
        declared.F32.launch(grid, x, *_planes(w), out, *space, tokens, *w.shape, int(add), defines=defines)


def gated(x: Any, gate: PackedWeight, up: PackedWeight, out: Any) -> None:
    """``out = silu(x Gᵀ) * (x Uᵀ)``, both products in one kernel. `x`: bf16 as uint16 (tokens, in); `gate`, `up`:
    PackedWeights of one format and shape (ffn, in); ffn a multiple of 8; `out`: bf16 as uint16 (tokens, ffn)."""
    tokens = _checked(x, gate, out)
    if (gate.format, gate.shape) != (up.format, up.shape):
        raise DeviceError(
            f"{gate.name} is {gate.format.name} {gate.shape}, {up.name} is {up.format.name} {up.shape}: "
            "one kernel multiplies by both only when they are alike"
        )
    defines, grid, space = _variant(gate, SWIGLU, tokens)
    declared.GATED.launch(grid, x, *_planes(gate), *_planes(up), out, *space, tokens, *gate.shape, defines=defines)


def _checked(x: Any, w: PackedWeight, out: Any) -> int:
    rows, width = w.shape
    if x.ndim != 2 or x.shape[1] != width or out.shape != (len(x), rows):
        raise DeviceError(f"gemm {w.name} {w.shape}: x {x.shape} and out {out.shape} do not fit")
    if rows % 8:
        raise DeviceError(f"gemm {w.name}: {rows} outputs are not a multiple of 8")
    return len(x)


def _planes(w: PackedWeight) -> tuple[Any, Any, Any]:
    return w.plane("low"), w.plane("high"), expand_scales(w)


def _variant(w: PackedWeight, epilogue: Epilogue, tokens: int) -> tuple[Defines, tuple[int, int], tuple[Any, Any]]:
    """Return defines, grid, and the workspace of split-K."""
    device = current_device()
    defines, parts = _plan(w.format.ggml_type, epilogue, tokens, w.shape, multiprocessors(device))
    tiles = declared.tiles(defines, tokens, w.shape[0])
    if parts == 1:
        return defines, (tiles, 1), (None, None)
    cupy, sums = import_cupy(), declared.sums(defines)
    return defines, (tiles, parts), (cupy.empty(tiles * parts * sums, cupy.float32), _arrivals(device))


@lru_cache(4096)
def _plan(kind: int, epilogue: Epilogue, tokens: int, shape: tuple[int, int], processors: int) -> tuple[Defines, int]:
    """Return the MMA tile and the number of splits (split-K) for which the busiest multiprocessor finishes first."""
    rows, k_tiles = shape[0], shape[1] // TILE
    best: tuple[float, Defines, int] | None = None
    for choice in declared.SHAPES:
        defines = declared.variant(kind, epilogue, choice)
        count = declared.tiles(defines, tokens, rows)
        for parts in range(1, min(declared.MOST_PARTS, k_tiles) + 1):
            cost = declared.cost(choice, count, k_tiles, parts, processors)
            if best is None or cost < best[0]:
                best = cost, defines, parts
    assert best is not None, "no shapes"
    return best[1:]


@cache
def _arrivals(device: int) -> Any:
    """Return counters of tiles computed in splits, zero between launches."""
    return import_cupy().zeros(declared.MOST_TILES_IN_PARTS, "uint32")


def _run(p: Product) -> None:
    if p.epilogue is SWIGLU:
        gate, up = p.weights
        gated(p.x, gate, up, p.outs[0])
    else:
        gemm(p.x, p.weights[0], p.outs[0], p.epilogue.typed(p.outs[0].dtype.char == "f"))


register_matmul(
    MatmulKernel(
        name="gemm_portable",
        run=_run,
        paths=("portable",),
        multiple=8,
        prefill=True,
        timed=range(32, 129),
    )
)
