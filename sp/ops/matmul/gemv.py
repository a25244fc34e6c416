"""The GEMV of decoding: 1 to 16 tokens times up to four packed weights in one launch, more in passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sp.kernels.device import capability, current_device, multiprocessors, shared_bytes_per_block
from sp.kernels.specs.matmul.epilogue import ADD, STORE, Epilogue
from sp.kernels.specs.matmul.gemv import GEMV, Layout, variant, whole
from sp.kernels.specs.matmul.weights import MOST_WEIGHTS
from sp.ops.matmul.gemm_small_m import FEW
from sp.ops.matmul.packed import PackedWeight, weight_arguments
from sp.ops.matmul.registry import Fusion, MatmulKernel, Product, register_matmul
from sp.quant import Q6_K, format_bits, packing_of

HELD = (1, 2, 4, 8, 16)  # capacities in tokens of the kernel's variants
LAYOUTS: dict[int, tuple[Layout, ...]] = {
    1: (Layout(8, 3), Layout(8, 2), Layout(8, 1)),
    2: (Layout(8, 2), Layout(8, 1)),
    4: (Layout(8, 2), Layout(8, 1)),
    8: (Layout(8, 2), Layout(8, 1)),
    16: (Layout(8, 1),),
}  # by capacity, the fastest layout first; the first that fits is used
STORE_ONE = Layout(6, 4)  # is tried before these for STORE with one token, unless a weight is Q6_K
PAIRS_FROM = 8192  # inputs from which two blocks share a row tile in ADD with one token
ADD_ONE = Layout(8, 2)  # is tried before these for ADD with one token and fewer inputs: more blocks have row tiles
PAIRS_ONE = Layout(4, 5)
"""Tried before these if two blocks share a row tile and each group then has at most one: no group waits for a
second."""


def gemv(
    x: Any,
    weights: Sequence[PackedWeight],
    outs: Sequence[Any],
    epilogue: Epilogue,
    norm: tuple[Any, float] | None = None,
) -> None:
    """Fill `outs` with the products of `x` and the weights; more tokens than fit go in passes.

    Parameters
    ----------
    x : uint16 (tokens, in) of BF16 bits, or float32 (tokens, in) with `norm`
    weights : up to 4 PackedWeights of shape (out_i, in)
    outs : arrays
        STORE: one per weight, uint16 (BF16) or float32 (tokens, out_i). ADD: float32 (tokens, out), added to. SWIGLU:
        uint16 (tokens, out) for the weights (gate, up).
    epilogue : STORE, ADD or SWIGLU
    norm : (float32 (in,), float), optional, weight and eps of an RMS norm of `x` before the product
    """
    tokens, k = x.shape
    kinds = tuple(w.format.ggml_type for w in weights)
    most = held(tokens, k, kinds, norm is not None, epilogue)
    assert most, f"{k} inputs do not fit in shared memory"
    for start in range(0, tokens, most):
        part = slice(start, min(start + most, tokens))
        _launch(x[part], weights, [out[part] for out in outs], kinds, epilogue, norm)


def held(tokens: int, k: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue) -> int:
    """Return how many of so many tokens one launch takes: all, or as many as fit in shared memory, or 0."""
    device = current_device()
    wanted = next((n for n in HELD if n >= tokens), HELD[-1])
    for count in reversed(HELD[: HELD.index(wanted) + 1]):
        if _variant(count, k, kinds, norm, epilogue, device) is not None:
            return count
    return 0


def _launch(
    x: Any,
    weights: Sequence[PackedWeight],
    outs: Sequence[Any],
    kinds: tuple[int, ...],
    epilogue: Epilogue,
    norm: Any,
) -> None:
    tokens, k = x.shape
    device = current_device()
    count = next(n for n in HELD if n >= tokens)
    units = sum(-(-w.shape[0] // 16) for w in (weights if epilogue == STORE else weights[:1]))
    few = units <= PAIRS_ONE.groups * (multiprocessors(device) // 2)
    defines = _variant(count, k, kinds, norm is not None, epilogue, device, few)
    assert defines is not None, f"{tokens} tokens of {k} inputs do not fit"
    weight, eps = norm if norm is not None else (None, 0.0)
    blocks = min(multiprocessors(device) // defines["SPLIT"], -(-units // defines["GROUPS"]))
    GEMV.launch(
        (defines["SPLIT"] * blocks,),
        x if norm is None else None,
        None if norm is None else x,
        weight,
        eps,
        tokens,
        len(weights),
        *weight_arguments(weights, outs),
        defines=defines,
    )


@cache
def _variant(
    count: int, k: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue, device: int, few: bool = False
) -> dict[str, int] | None:
    """Return the defines for a capacity of `count` tokens, None if no layout fits with a ring of two slots. `few`:
    there are at most as many row tiles as pairs of blocks of `PAIRS_ONE` have groups."""
    capacity = shared_bytes_per_block(device)
    stages = k % 512 == 0 and all(whole(packing_of(kind), k // 2) for kind in kinds)
    pairs = epilogue == ADD and count == 1 and stages and k >= PAIRS_FROM and capability(device) >= (9, 0)
    for layout in (*_first(count, k, kinds, epilogue, pairs and few), *LAYOUTS[count]):
        defines = variant(k, count, format_bits(*kinds), norm, epilogue, layout, capacity, 2 if pairs else 1)
        if defines["STAGES"] >= 2:
            return defines
    return None


def _first(count: int, k: int, kinds: tuple[int, ...], epilogue: Epilogue, few_pairs: bool) -> tuple[Layout, ...]:
    """Return the layouts that are tried before `LAYOUTS`."""
    if count == 1 and epilogue == STORE and Q6_K.ggml_type not in kinds:
        return (STORE_ONE,)
    if count == 1 and epilogue == ADD and k < PAIRS_FROM:
        return (ADD_ONE,)
    return (PAIRS_ONE,) if few_pairs else ()


def _run(p: Product) -> None:
    gemv(p.x, p.weights, p.outs, p.epilogue, p.norm)  # type: ignore[arg-type]  # a Norm: it takes no deferred one


register_matmul(
    MatmulKernel(
        name="gemv",
        run=_run,
        fusions=frozenset({Fusion.NORM}),
        max_weights=MOST_WEIGHTS,
        mixed_swiglu=True,
        room=held,
        least_room=8,
        timed=range(1, HELD[-1] + 1),
        otherwise=FEW,
    )
)
