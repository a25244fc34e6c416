"""Which kernel multiplies by packed weights: the fastest by a measured table.

``dispatch_table.json`` holds the microseconds that each kernel took, by format, shape and rows, on the card it names;
`sp kernels tune` makes it. Times of the kernels grow in steps, and the table has the last rows of each: a product takes
the kernel that is fastest at the next row of the table. Other cards use the same table, and formats that were not timed
go by the most alike of those that were."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from sp.errors import DeviceError
from sp.kernels.path import current_path
from sp.kernels.specs.matmul.epilogue import Epilogue
from sp.ops.matmul.registry import MatmulKernel, kernels, prefill_kernel
from sp.quant import FORMATS, Math, format_by_name

TABLE = Path(__file__).with_name("dispatch_table.json")
SHAPES = {"wide": (17408, 5120), "deep": (5120, 17408)}
"""Outputs and inputs of the products measured; others go by which of the two is larger."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # rows of x measured; more go to the prefill matmul


@cache
def table() -> dict[str, Any]:
    """The table as it lies in the file."""
    return json.loads(TABLE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def shape_class(out: int, width: int) -> str:
    """Which of `SHAPES` stands for a product.

    >>> shape_class(10240, 5120), shape_class(5120, 6144)
    ('wide', 'deep')
    """
    return "wide" if out >= width else "deep"


def timed_as(name: str) -> str:
    """The format whose times stand for one's own: itself, or of those timed the nearest in bits a value. Super-blocks
    go by super-blocks and other blocks by others: kernels take these in forms of their own.

    >>> timed_as("Q6_K"), timed_as("IQ4_XS"), timed_as("Q5_1")
    ('Q6_K', 'Q4_K', 'Q4_0')
    """
    timed = [format_by_name(known) for known in dict.fromkeys(key.split()[0] for key in table()["us"])]
    fmt = format_by_name(name)
    if fmt in timed or fmt.packing is None:
        return name
    alike = [each for each in timed if each.packing and each.packing.super == fmt.packing.super]
    return min(alike or [fmt], key=lambda each: abs(each.bits_per_value - fmt.bits_per_value)).name


def times(name: str, shape: str, path: str) -> dict[int, dict[str, float]]:
    """Microseconds by rows and kernel, of those a path may take; of the format `timed_as` says."""
    return _times(name, shape, kernels(path))


@cache
def _times(name: str, shape: str, known: tuple[MatmulKernel, ...]) -> dict[int, dict[str, float]]:
    names = {kernel.name for kernel in known if format_by_name(name).ggml_type in kernel.formats}
    found: dict[int, dict[str, float]] = {rows: {} for rows in ROWS}
    for key, us in table()["us"].get(f"{timed_as(name)} {shape}", {}).items():
        kernel, rows = key.split()
        if kernel in names:
            found[int(rows)][kernel] = us
    return found


def kernel_for(
    tokens: int, kind: int, out: int, width: int, path: str, epilogue: Epilogue = Epilogue.STORE
) -> MatmulKernel:
    """The kernel that takes a product: the fastest by the table, but for rows that a kernel is preferred for. `tokens`:
    rows of x; `kind`: ggml type of the weight; `out`, `width`: its shape; `path`: {"sm_90a", "portable"}; `epilogue`:
    the table was measured with STORE; others are taken to cost as much.

    >>> kernel_for(1, 12, 17408, 5120, "sm_90a").name, kernel_for(4096, 12, 17408, 5120, "sm_90a").name
    ('gemv', 'gemm_sm90')
    """
    return _kernel_for(tokens, kind, shape_class(out, width), epilogue, kernels(path))


@cache
def _kernel_for(
    tokens: int, kind: int, shape: str, epilogue: Epilogue, known: tuple[MatmulKernel, ...]
) -> MatmulKernel:
    able = [k for k in known if Math.BF16 in k.maths and kind in k.formats and epilogue in k.epilogues]
    if not able:
        raise DeviceError(f"no kernel multiplies by weights of {FORMATS[kind].name} here")
    for kernel in reversed(able):
        if tokens in kernel.preferred:
            return kernel
    at = _times(FORMATS[kind].name, shape, known)[next(n for n in ROWS if n >= tokens)] if tokens <= ROWS[-1] else {}
    if not at:  # so many rows, or this format, were not timed
        return next((kernel for kernel in able if kernel.prefill), able[0])
    return min((kernel for kernel in able if kernel.name in at), key=lambda kernel: at[kernel.name])


def choose(tokens: int, weights: tuple[Any, ...], norm: bool, epilogue: Epilogue) -> MatmulKernel:
    """The kernel for a product of `tokens` rows with weights that share them. Decided by the largest of the weights,
    and by what a launch of the kernel has room for. `tokens`: rows of x, at least 1; `norm`: whether a norm of x comes
    first."""
    largest = max(weights, key=lambda w: w.nbytes)
    path, kinds = current_path(), tuple(w.format.ggml_type for w in weights)
    out, width = largest.shape
    if largest.math is not Math.BF16 and (found := _in_math(tokens, weights, largest, path, norm, epilogue)):
        return found
    kernel = kernel_for(tokens, largest.format.ggml_type, out, width, path, epilogue)
    while not kernel.prefill and not kernel.takes(tokens, width, kinds, norm, epilogue):
        kernel = kernel.otherwise or prefill_kernel(path)
    return kernel


def _in_math(
    tokens: int, weights: tuple[Any, ...], largest: Any, path: str, norm: bool, epilogue: Epilogue
) -> MatmulKernel | None:
    """A kernel that makes the product in what the largest weight asks for, where it is worth it; of two the last."""
    kinds = tuple(w.format.ggml_type for w in weights)
    for kernel in reversed(kernels(path)):
        whole = epilogue is Epilogue.STORE or all(kernel.multiplies(w) for w in weights)
        able = largest.math in kernel.maths and kernel.multiplies(largest) and whole
        if able and kernel.takes(tokens, largest.shape[1], kinds, norm, epilogue):
            return kernel
    return None


def rows(path: str) -> list[dict[str, Any]]:
    """The table for people: for every shape and format, ranges of rows and the kernel that takes them. Each entry has
    ``shape``, ``format``, ``rows`` ("9..24"), ``kernel``, ``us`` (of the range's last row, None beyond the table) and
    ``others``, the times of the kernels not taken there."""
    found: list[dict[str, Any]] = []
    for key in table()["us"]:
        name, shape = key.split()
        first, kind = 1, format_by_name(name).ggml_type
        last = kernel_for(ROWS[-1] + 1, kind, *SHAPES[shape], path).name
        measured = times(name, shape, path)
        taken = [kernel_for(count, kind, *SHAPES[shape], path).name for count in ROWS]
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
                    "us": measured[count].get(kernel),
                    "others": others,
                }
            )
            first = count + 1
        found.append({"shape": shape, "format": name, "rows": f"{first}..", "kernel": last, "us": None, "others": {}})
    return found
