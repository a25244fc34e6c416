"""Choose the kernel of a product with packed weights: the fastest by a measured table.

``dispatch_table.json`` contains the microseconds that each kernel took, by format, shape and rows, on the GPU it names;
`sp kernels tune` writes it. Times of the kernels grow in steps, and the table has the last rows of each step: a product
uses the kernel that is fastest at the next larger number of rows in the table. Other GPUs use the same table, and
formats without measurements use those of the most similar format."""

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
"""Outputs and inputs of the measured products; others are classified by which of the two is larger."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # measured rows of x; larger products use the prefill matmul


@cache
def table() -> dict[str, Any]:
    """Return the table in the file."""
    return json.loads(TABLE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def shape_class(out: int, width: int) -> str:
    """Return the key in `SHAPES` that represents a product.

    >>> shape_class(10240, 5120), shape_class(5120, 6144)
    ('wide', 'deep')
    """
    return "wide" if out >= width else "deep"


def timed_as(name: str) -> str:
    """Return the format whose times are used for a format: itself, or the measured one with the nearest bits per value.
    Super-blocks use super-blocks and other blocks use others, because they have separate variants of the kernels.

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
    """Return the microseconds by rows and kernel, for the kernels of a path; for the format `timed_as`."""
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
    """Return the kernel of a product: the fastest by the table, except for rows for which a kernel is preferred.
    `tokens`: rows of x; `kind`: ggml type of the weight; `out`, `width`: its shape; `path`: {"sm_90a", "portable"};
    `epilogue`: the table was measured with STORE; others are assumed to cost the same.

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
    if not at:  # neither this format nor so many rows were timed
        return next((kernel for kernel in able if kernel.prefill), able[0])
    return min((kernel for kernel in able if kernel.name in at), key=lambda kernel: at[kernel.name])


def choose(tokens: int, weights: tuple[Any, ...], norm: bool, epilogue: Epilogue) -> MatmulKernel:
    """Return the kernel for a product of `tokens` rows with weights that share them. It depends on the largest of the
    weights, and on the capacity of a launch of the kernel. `tokens`: rows of x, at least 1; `norm`: True if a norm of x
    comes first."""
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
    """Return a kernel for the precision of the largest weight, if it is worth it; the one registered last of
    several."""
    kinds = tuple(w.format.ggml_type for w in weights)
    for kernel in reversed(kernels(path)):
        whole = epilogue is Epilogue.STORE or all(kernel.multiplies(w) for w in weights)
        able = largest.math in kernel.maths and kernel.multiplies(largest) and whole
        if able and kernel.takes(tokens, largest.shape[1], kinds, norm, epilogue):
            return kernel
    return None


def rows(path: str) -> list[dict[str, Any]]:
    """Return the table for people: for every shape and format, ranges of rows and their kernel. Each entry has
    ``shape``, ``format``, ``rows`` ("9..24"), ``kernel``, ``us`` (at the range's last row, None beyond the table) and
    ``others``, the times of the kernels that are not used there."""
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
