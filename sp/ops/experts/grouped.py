"""Grouped GEMM: products of tokens sorted by expert with the weights of their experts, on the device, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.path import current_path
from sp.kernels.specs.experts import GATE_SLOTS, SORT_SLOTS
from sp.kernels.specs.matmul import gemm_experts as declared
from sp.kernels.specs.matmul import gemm_portable as portable
from sp.kernels.specs.matmul.epilogue import STORE, SWIGLU, Epilogue
from sp.kernels.tensor_map import tensor_map
from sp.ops.experts.stack import Stack
from sp.ops.matmul.packed import expand_scales
from sp.quant.packing import TILE

WIDE_FROM = 24
"""Average tokens per expert from which the portable kernel uses tiles of 64 tokens instead of 32."""


@dataclass(frozen=True)
class Placed:
    """Positions of slots sorted by expert, in arrays on the device. `tiles`: int32 (most tiles,), for every tile of
    rows its expert, its width and its first block, see ``sort_slots.cu``."""

    places: Any  # int32 (slots,), the row of every slot in the sorted tokens; each expert starts at a whole block
    tiles: Any
    made: Any  # uint32 (1,), the number of tiles
    block: int  # rows per block

    @property
    def rows(self) -> int:
        """Rows of the sorted tokens, including the padding between experts and after the last one."""
        return len(self.tiles) * self.block


def place(experts: Any, count: int) -> Placed:
    """Sort slots by expert. `experts`: cupy int32 (tokens, used); `count`: number of experts."""
    cupy, slots, block = import_cupy(), experts.size, block_rows(experts.size, count)
    # Each expert pads less than a block, and experts without slots pad nothing.
    most = max(min(slots, -(-slots // block) + count), 1)
    places, tiles = cupy.empty(slots, "int32"), cupy.empty(most, "int32")
    made = cupy.empty(1, "uint32")
    widest = declared.TOKENS_SM90 if current_path() == "sm_90a" else block
    SORT_SLOTS.launch((1,), experts, places, tiles, made, slots, count, block, widest)
    return Placed(places, tiles, made, block)


def block_rows(slots: int, count: int) -> int:
    """Return the multiple of rows to which each expert is padded, for the kernel of the products."""
    if current_path() == "sm_90a":
        return declared.BLOCK_SM90
    return _tokens(portable.SMALL if slots >= WIDE_FROM * count else portable.THIN)


def multiply(x: Any, w: Stack, placed: Placed) -> Any:
    """``y[r] = W_e x[r]`` for the expert e of every row: bf16 (rows, in) -> bf16 (rows, out)."""
    return _launch(x, (w,), placed, STORE)


def gated(x: Any, gate: Stack, up: Stack, placed: Placed) -> Any:
    """``silu(G_e x[r]) * (U_e x[r])``; both stacks have one format."""
    return _launch(x, (gate, up), placed, SWIGLU)


def gated_rows(rows: Any, gate: Stack, up: Stack, placed: Placed, experts: Any, clamped: bool) -> Any:
    """`gated` with biases, by `clamped_swiglu` if `clamped`; the stacks may have any formats. `experts`: cupy int32
    (tokens, used). Products are rounded to bf16 in between; rows without a slot are not written."""
    products = multiply(rows, gate, placed), multiply(rows, up, placed)
    mid = import_cupy().empty_like(products[0])
    args = *products, gate.bias, up.bias, experts, placed.places, mid, gate.rows // 8
    GATE_SLOTS.launch((experts.size,), *args, defines={"CLAMPED": int(clamped)})
    return mid


def _launch(x: Any, stacks: tuple[Stack, ...], placed: Placed, epilogue: Epilogue) -> Any:
    w = stacks[0]
    width = w.weight.shape[1]
    sizes = {(s.rows, s.pitch, s.weight.shape, s.weight.format) for s in stacks}
    if len(sizes) > 1:
        raise DeviceError(f"{w.weight.name} and {stacks[1].weight.name} differ in size or format")
    if w.rows % TILE or w.pitch % TILE or any(s.first % TILE for s in stacks) or width % TILE:
        raise DeviceError(
            f"{w.weight.name}: experts of {w.rows} x {width} are no multiples of {TILE}; "
            "let fewer cards share it, or run it on the CPU"
        )
    if x.shape != (placed.rows, width):
        raise DeviceError(f"{w.weight.name}: x {x.shape} is not ({placed.rows}, {width})")
    y = import_cupy().empty((placed.rows, w.rows), "uint16")
    (_sm90 if current_path() == "sm_90a" else _portable)(x, stacks, placed, epilogue, y)
    return y


def _owners(stacks: tuple[Stack, ...], placed: Placed) -> tuple[Any, ...]:
    w, other = stacks[0], stacks[-1]
    return (placed.tiles, placed.made, w.weight.row_tiles, w.pitch // TILE, w.first // TILE, other.first // TILE)


def _sm90(x: Any, stacks: tuple[Stack, ...], placed: Placed, epilogue: Epilogue, y: Any) -> None:
    w, width = stacks[0], x.shape[1]
    row_tiles, most = w.rows // TILE, len(placed.tiles)
    outs = row_tiles if epilogue is SWIGLU else -(-row_tiles // 2)
    declared.SM90.launch(
        (min(multiprocessors(current_device()), most * outs),),
        tensor_map(x, (width, len(x)), (2 * width,), (64, placed.block)),
        tensor_map(y, (w.rows, len(y)), (2 * w.rows,), (64, 64)),
        w.weight.data,
        stacks[1].weight.data if len(stacks) > 1 else None,
        most,
        outs,
        row_tiles,
        w.weight.k_tiles,
        0,
        None,
        None,
        *_owners(stacks, placed),
        defines=declared.variant_sm90(w.weight.format.ggml_type, epilogue),
    )


def _portable(x: Any, stacks: tuple[Stack, ...], placed: Placed, epilogue: Epilogue, y: Any) -> None:
    w = stacks[0]
    shape = next(one for one in (portable.SMALL, portable.THIN) if _tokens(one) == placed.block)
    defines = declared.variant_portable(w.weight.format.ggml_type, epilogue, shape)
    planes: list[Any] = []
    scales: dict[int, Any] = {}
    for stack in stacks:
        held = stack.weight
        if id(held) not in scales:
            scales[id(held)] = expand_scales(held)
        planes += [held.plane("low"), held.plane("high"), scales[id(held)]]
    spec = declared.PORTABLE_GATED if epilogue is SWIGLU else declared.PORTABLE
    grid = (portable.tiles(defines, len(x), w.rows), 1)
    spec.launch(grid, x, *planes, y, None, None, len(x), w.rows, x.shape[1], *_owners(stacks, placed), defines=defines)


def _tokens(shape: portable.Shape) -> int:
    return portable.tile(declared.variant_portable(0, STORE, shape))[1]
