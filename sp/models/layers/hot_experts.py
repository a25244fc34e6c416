"""Hot experts: those of a layer that its prompt chose most, and how often decoding chooses them again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.models.layers.pinned_weight import PLANES
from sp.ops.array_module import array_module
from sp.ops.experts.stack import Stack
from sp.ops.matmul.fragment_order import plane_offsets
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Weight


def count_choices(counts: Any, experts: Any, one: Any) -> None:
    """Add to `counts` how often each expert was chosen; on the device nothing waits, and a CUDA graph can capture it.

    Parameters
    ----------
    counts : uint32 (count,)
        Changed in place.
    experts : int32 (tokens, used)
        See `Routing`.
    one : uint32 (1,)
        That number, where `counts` are: a graph could not send it from the host anew.

    Examples
    --------
    >>> import numpy as np
    >>> counts, one = np.zeros(4, np.uint32), np.ones(1, np.uint32)
    >>> count_choices(counts, np.array([[2, 0], [2, 3]], np.int32), one)
    >>> counts.tolist()
    [1, 0, 2, 1]
    """
    if experts.size:
        array_module(counts).add.at(counts, experts.reshape(-1), one)


def hottest(counts: Ints, most: int) -> Ints:
    """The experts that were chosen most, `most` of them at most, ascending; int64, of equals the smaller index.

    >>> import numpy as np
    >>> hottest(np.array([5, 0, 7, 5]), 2).tolist()
    [0, 2]
    """
    found: Ints = np.sort(np.argsort(-counts.astype(np.int64), kind="stable")[:most])
    return found


def hit_rate(prompt: Ints, decoded: Ints, share: float) -> float:
    """Share of the choices while decoding that fall on experts the prompt made hot, over all layers.

    Parameters
    ----------
    prompt, decoded : int (layers, count)
        How often each expert was chosen by the tokens of the prompt and by those after it.
    share : float
        Of a layer's experts that are hot.

    Returns
    -------
    float
        NaN where nothing was decoded.

    Examples
    --------
    >>> import numpy as np
    >>> hit_rate(np.array([[9, 1, 0, 4]]), np.array([[3, 2, 1, 2]]), 0.5)
    0.625
    """
    most, total = int(share * prompt.shape[1]), int(decoded.sum())
    hits = sum(int(after[hottest(before, most)].sum()) for before, after in zip(prompt, decoded, strict=True))
    return hits / total if total else float("nan")


def with_resident(stack: Stack, experts: Ints) -> Stack:
    """The same matrices, those of some experts held a second time where they are read faster.

    Kernels do not look at `Stack.slots` as yet and read every expert from the first weight; it is what one that does
    will be given: a base address a plane, the table, and rows of whole tiles, `pitch` an expert, in both weights.

    Parameters
    ----------
    stack : Stack
        Of a `Weight`, or of a `PackedWeight` whose experts are whole tiles of rows.
    experts : int (hot,)
        Which ones, at least one.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.quant import F32
    >>> stack = Stack(Weight.from_floats("w", np.arange(3, dtype=np.float32).reshape(3, 1), F32), 1, 0, 1)
    >>> found = with_resident(stack, np.array([2]))
    >>> found.slots.tolist(), found[2].dense().tolist(), found.resident.shape
    ([-1, -1, 0], [[2.0]], (1, 1))
    """
    weight, slots = stack.weight, np.full(stack.count, -1, np.int32)
    slots[experts] = np.arange(len(experts), dtype=np.int32)
    if isinstance(weight, PackedWeight):
        xp = array_module(weight.data)
        return replace(stack, resident=_packed_rows(weight, stack, experts, xp), slots=xp.asarray(slots))
    rows = weight.data.reshape(stack.count, stack.pitch, -1)[experts].reshape(len(experts) * stack.pitch, -1)
    held = Weight(weight.name, weight.format, (len(rows), weight.shape[1]), rows)
    return replace(stack, resident=held, slots=slots)


def _packed_rows(weight: PackedWeight, stack: Stack, experts: Ints, xp: Any) -> PackedWeight:
    """The rows of some experts as a packed weight: of each plane a run an expert, for row tiles come first in all."""
    shape = len(experts) * stack.pitch, weight.shape[1]
    held = PackedWeight(
        weight.name, weight.format, shape, xp.empty(plane_offsets(weight.name, weight.format, shape).end, np.uint8)
    )
    for name in PLANES:
        if (plane := weight.plane(name)) is not None:
            held.plane(name)[:] = plane.reshape(stack.count, -1)[xp.asarray(experts)].ravel()
    return held
