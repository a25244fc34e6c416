"""Every product with packed weights: kernel by kernel, and as layers make them on both paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from fingerprint.finding import call, find, known
from fingerprint.inputs import FORMATS, K_QUANTS, bf16, f32, norm, weight

Case = tuple[str, Callable[[], Any]]
SMALL, DEEP, WIDE = (200, 1280), (640, 5120), (3072, 1280)
DTYPES = {"bf16": np.uint16, "f32": np.float32}


def empty(rows: int, columns: int, dtype: Any) -> Any:
    """Poisoned where the runner poisons."""
    import cupy

    return cupy.empty((rows, columns), dtype)


def epilogue(name: str) -> Any:
    """STORE, ADD or SWIGLU, as an enum where there is one."""
    return find("Epilogue")[name] if known("Epilogue") else getattr(import_module(find("gemv").__module__), name)


def few(kernel: str, tokens: int, names: tuple[str, ...], shape: tuple[int, int], kind: str, dtype: str, normed: bool,
        rows: tuple[int, ...] = ()) -> Any:  # fmt: skip
    """One launch of gemv, gemm_few or gemm_few_sm90."""
    out, width = shape
    outs = rows or (out,) * len(names)
    weights = [weight(name, n, width, seed) for seed, (name, n) in enumerate(zip(names, outs, strict=True))]
    x = f32(tokens, width) if normed else bf16(tokens, width)
    given = norm(width) if normed else None
    if kind == "ADD":
        results = [f32(tokens, out, 7)]
    elif kind == "SWIGLU":
        results = [empty(tokens, out, np.uint16)]
    else:
        results = [empty(tokens, n, DTYPES[dtype]) for n in outs]
    more = {"norm": given} if normed else {}
    find(kernel)(x, weights, results, epilogue(kind), **more)
    return results


def prefill(path: str, tokens: int, name: str, shape: tuple[int, int], mode: str) -> Any:
    """A prefill product; `mode` bf16, f32, add or gated."""
    out, width = shape
    x, w = bf16(tokens, width), weight(name, out, width)
    result = f32(tokens, out, 7) if mode == "add" else empty(tokens, out, DTYPES.get(mode, np.uint16))
    if mode == "gated":
        find("gated", path)(x, w, weight(name, out, width, 1), result)
        return result
    gemm = find("gemm", path)
    if "mode" in inspect.signature(gemm).parameters:
        gemm(x, w, result, mode)
    else:
        gemm(x, w, result, epilogue({"add": "ADD", "f32": "STORE_F32", "bf16": "STORE"}[mode]))
    return result


def kernels() -> Iterator[Case]:
    """Kernel by kernel."""
    for name in FORMATS:
        for tokens in (1, 2, 3, 8, 9, 16, 37):
            for kind, dtype, normed in (("STORE", "f32", False), ("STORE", "bf16", False), ("STORE", "bf16", True),
                                        ("ADD", "f32", False), ("SWIGLU", "bf16", True)):  # fmt: skip
                names = (name, name) if kind == "SWIGLU" else (name,)
                label = f"gemv {name} {kind} {dtype} norm={normed} m={tokens}"
                yield label, partial(few, "gemv", tokens, names, SMALL, kind, dtype, normed)
        for tokens in (9, 17, 23, 32, 40, 64):
            for kind, dtype in (("STORE", "f32"), ("STORE", "bf16"), ("ADD", "f32"), ("SWIGLU", "bf16")):
                names = (name, name) if kind == "SWIGLU" else (name,)
                label = f"gemm_few {name} {kind} {dtype} m={tokens}"
                yield label, partial(few, "gemm_few", tokens, names, SMALL, kind, dtype, False)
        for path in ("gemm_sm90", "gemm_portable"):
            for mode in ("bf16", "f32", "add", "gated"):
                for tokens, shape in ((1, SMALL), (129, SMALL), (300, WIDE), (1000, DEEP)):
                    label = f"{path} {name} {mode} m={tokens} {shape}"
                    yield label, partial(prefill, path, tokens, name, shape, mode)
    for name in K_QUANTS:
        for tokens in (2, 8, 9, 16, 23, 24, 32, 33, 40, 48, 63, 64):
            for kind, dtype, normed in (("STORE", "f32", False), ("STORE", "bf16", False), ("STORE", "f32", True),
                                        ("ADD", "f32", False), ("SWIGLU", "bf16", True)):  # fmt: skip
                names = (name, name) if kind == "SWIGLU" else (name,)
                label = f"gemm_few_sm90 {name} {kind} {dtype} norm={normed} m={tokens}"
                yield label, partial(few, "gemm_few_sm90", tokens, names, SMALL, kind, dtype, normed)
        for tokens in (1, 16, 23, 64):
            for shape in ((17408, 5120), (5120, 17408)):
                for kernel in ("gemv", "gemm_few_sm90"):
                    if (kernel == "gemv") == (tokens == 1):
                        label = f"{kernel} {name} ADD m={tokens} {shape}"
                        yield label, partial(few, kernel, tokens, (name,), shape, "ADD", "f32", False)
    together, sizes = ("Q6_K", "Q4_K", "Q4_K", "Q5_K"), (1040, 608, 48, 8)
    for kernel, counts in (("gemv", (1, 6)), ("gemm_few", (17, 32)), ("gemm_few_sm90", (6, 23, 33, 64))):
        for tokens in counts:
            yield (
                f"{kernel} four weights m={tokens}",
                partial(few, kernel, tokens, together, SMALL, "STORE", "f32", kernel != "gemm_few", sizes),
            )


def layer(path: str, tokens: int, names: tuple[str, str, str]) -> Any:
    """project, project_add_before, gated_project and project_add after each other, as a layer has them."""
    hidden, ffn, inner = 1280, 2560, 1280
    q, gate, up = weight(names[0], 1200, hidden), weight(names[1], ffn, hidden), weight(names[1], ffn, hidden, 1)
    down = weight(names[2], hidden, ffn)
    small, out = weight("Q4_K", 48, hidden, 3), weight(names[0], hidden, inner)
    with find("forced_path")(path):
        x, h = f32(tokens, hidden), bf16(tokens, inner)
        first = find("project")(x, (q, small), norm(hidden), f32=(False, True))
        plain = find("project")(bf16(tokens, hidden, 3), (q, small))
        x, begun = find("project_add_before")(x, h, out, norm(hidden, 1))
        middle = find("gated_project")(x, gate, up, begun, down)
        x, begun = find("project_add_before")(x, middle, down, norm(hidden, 2))
        last = find("project")(x, (q, small), begun, f32=(True, True))
        x = find("project_add")(x, bf16(tokens, inner, 5), out)
        alone = find("gated_project")(x, gate, up, norm(hidden, 4))
    return [*first, *plain, middle, *last, x, alone]


def layers() -> Iterator[Case]:
    """Through the dispatcher."""
    mixes = [(name,) * 3 for name in FORMATS] + [("Q6_K", "Q4_K", "Q6_K"), ("Q4_K", "Q4_K", "Q8_0")]
    for path in ("sm_90a", "portable"):
        for names in mixes:
            for tokens in (1, 2, 7, 16, 23, 33, 64, 65, 128, 129, 300):
                yield f"project {path} {'/'.join(names)} m={tokens}", partial(layer, path, tokens, names)


def packing() -> Iterator[Case]:
    """The layout of weights, and what is read back of it."""

    def packed(name: str) -> Any:
        w = weight(name, 200, 1280)
        return [w.data, find("unpack")(w), find("unpack_bf16")(w)]

    def embedded(name: str) -> Any:
        from fingerprint.inputs import device, encoded

        fmt, rows = find("format_by_name")(name), encoded(name, 1280)
        w = find("Weight", "quant")("w", fmt, (len(rows), 1280), device(rows))
        return call(find("embedding"), ids=device(np.array([3, 49, 0, 63, -1], np.int32)), w=w)

    def elementwise(tokens: int, width: int) -> Any:
        scale, eps = norm(width)
        x = f32(tokens, width)
        return [find("rms_norm")(x, scale, eps), find("rms_norm")(x, scale, eps, f32=True),
                find("swiglu")(bf16(tokens, width, 1), bf16(tokens, width, 2))]  # fmt: skip

    for name in FORMATS:
        yield f"pack {name}", partial(packed, name)
        yield f"embedding {name}", partial(embedded, name)
    for tokens, width in ((1, 128), (3, 1000), (130, 5120)):
        yield f"rms_norm swiglu {tokens}x{width}", partial(elementwise, tokens, width)
