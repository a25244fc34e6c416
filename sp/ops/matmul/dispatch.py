"""Which kernel multiplies by packed weights: the fastest by a measured table.

``dispatch_table.json`` holds the microseconds that each kernel took, by format, shape and rows, on the card it names;
`sp kernels tune` makes it. Times of the kernels grow in steps, and the table has the last rows of each: a product takes
the kernel that is fastest at the next row of the table. Other cards use the same table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from sp.kernels.path import current_path
from sp.ops.matmul.gemm_few import fits
from sp.ops.matmul.gemv import held
from sp.quant import FORMATS, format_by_name, packing_of

TABLE = Path(__file__).with_name("dispatch_table.json")
SHAPES = {"wide": (17408, 5120), "deep": (5120, 17408)}
"""Outputs and inputs of the products measured; others go by which of the two is larger."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Rows of x measured; more go to the prefill matmul."""
MATMUL = {"sm_90a": "gemm_sm90", "portable": "gemm_portable"}
KERNELS = {
    "sm_90a": ("gemv", "gemm_few", "gemm_few_sm90", "gemm_sm90"),
    "portable": ("gemv", "gemm_few", "gemm_portable"),
}
"""Kernels that a path may take."""
HELD_AT_LEAST = 8
"""Where fewer tokens than this fit in a launch of the decode kernel, its passes do not pay."""
DRAFTS = range(2, 65)
"""Rows of x for which K-quants take the Hopper kernel for few tokens: it is the fastest there, or nearly so, and its
results go to the next product in the form which that one takes; the table does not see that."""


@cache
def table() -> dict[str, Any]:
    """The table as it lies in the file."""
    return json.loads(TABLE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def shape_class(out: int, width: int) -> str:
    """Which of `SHAPES` stands for a product.

    Examples
    --------
    >>> shape_class(10240, 5120), shape_class(5120, 6144)
    ('wide', 'deep')
    """
    return "wide" if out >= width else "deep"


@cache
def times(name: str, shape: str, path: str) -> dict[int, dict[str, float]]:
    """Microseconds by rows and kernel, of those a path may take."""
    found: dict[int, dict[str, float]] = {rows: {} for rows in ROWS}
    for key, us in table()["us"][f"{name} {shape}"].items():
        kernel, rows = key.split()
        if kernel in KERNELS[path]:
            found[int(rows)][kernel] = us
    return found


@cache
def kernel_for(tokens: int, kind: int, out: int, width: int, path: str) -> str:
    """The kernel that takes a product: "gemv", "gemm_few", "gemm_few_sm90", or the prefill matmul of the path.

    It is the fastest by the table, but for K-quants of `DRAFTS` rows on Hopper.

    Parameters
    ----------
    tokens : int
        Rows of x.
    kind : int
        ggml type of the weight.
    out, width : int
        Its shape.
    path : {"sm_90a", "portable"}

    Examples
    --------
    >>> kernel_for(1, 12, 17408, 5120, "sm_90a"), kernel_for(4096, 12, 17408, 5120, "sm_90a")
    ('gemv', 'gemm_sm90')
    """
    if tokens > ROWS[-1]:
        return MATMUL[path]
    if path == "sm_90a" and tokens in DRAFTS and packing_of(kind).super:
        return "gemm_few_sm90"
    at = times(FORMATS[kind].name, shape_class(out, width), path)[next(n for n in ROWS if n >= tokens)]
    return min(at, key=lambda kernel: at[kernel])


def choose(tokens: int, weights: tuple[Any, ...], norm: bool, epilogue: int) -> str:
    """The kernel for the product of `tokens` rows with weights that share them, as far as its shared memory has room.

    Decided by the largest of the weights; "gemm_few_sm90" means "gemm_few" for those among them that are no K-quants.
    `norm` and `epilogue` as in `sp.ops.matmul.gemv`.
    """
    largest = max(weights, key=lambda w: w.nbytes)
    path, kinds = current_path(), tuple(w.format.ggml_type for w in weights)
    out, width = largest.shape
    kernel = kernel_for(tokens, largest.format.ggml_type, out, width, path)
    if kernel == "gemv" and held(tokens, width, kinds, norm, epilogue) < min(tokens, HELD_AT_LEAST):
        kernel = "gemm_few"
    if kernel == "gemm_few" and not all(fits(width, (kind,)) for kind in kinds):
        kernel = MATMUL[path]
    return kernel


def matmul() -> Callable[..., None]:
    """The prefill ``gemm(x, w, out, mode)`` of the current path."""
    if current_path() == "sm_90a":
        from sp.ops.matmul.gemm_sm90 import gemm
    else:
        from sp.ops.matmul.gemm_portable import gemm
    return gemm


def gated_matmul() -> Callable[..., None]:
    """The prefill ``gated(x, gate, up, out)`` of the current path."""
    if current_path() == "sm_90a":
        from sp.ops.matmul.gemm_sm90 import gated
    else:
        from sp.ops.matmul.gemm_portable import gated
    return gated


def rows(path: str) -> list[dict[str, Any]]:
    """The table for people: for every shape and format, ranges of rows and the kernel that takes them.

    Each entry has ``shape``, ``format``, ``rows`` ("9..24"), ``kernel``, ``us`` (of the range's last row, None beyond
    the table) and ``others``, the times of the kernels not taken there.
    """
    found: list[dict[str, Any]] = []
    for key in table()["us"]:
        name, shape = key.split()
        first, kind = 1, format_by_name(name).ggml_type
        measured = times(name, shape, path)
        taken = [kernel_for(count, kind, *SHAPES[shape], path) for count in ROWS]
        for count, kernel, after in zip(ROWS, taken, [*taken[1:], None], strict=True):
            if kernel == after:
                continue
            others = {k: us for k, us in measured[count].items() if k != kernel}
            found.append(
                {
                    "shape": shape,
                    "format": name,
                    "rows": f"{first}..{count}",
                    "kernel": kernel,
                    "us": measured[count][kernel],
                    "others": others,
                }
            )
            first = count + 1
        found.append(
            {"shape": shape, "format": name, "rows": f"{first}..", "kernel": MATMUL[path], "us": None, "others": {}}
        )
    return found
