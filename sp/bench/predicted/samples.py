"""Records of kernels as samples of `Work`: what was asked of a kind of kernel, and the seconds it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sp.bench.record import newest
from sp.models.cost import prefill_cost
from sp.models.inspect.known_cards import Path as KernelPath
from sp.models.synthetic.shapes import find_shape
from sp.models.timing.tiles import Product
from sp.models.timing.work import Work, scan_blocks

Facts = Mapping[str, Any]
FEWEST = 128
"""Rows of the smallest products that count as a prefill's."""
MANY = 8192
"""Rows of products in bytes that are long: these are timed here as cool as a card seldom is, see `sp.bench.timing`."""
PRODUCTS = {"bf16": "matmul", "int8": "matmul int8"}
DELTA_SHAPE = "qwen3.6-27b"
"""Whose recurrence is timed by itself."""


@dataclass(frozen=True)
class Sample:
    """One launch, or a few that always go together.

    Attributes
    ----------
    work : Work
    path : {"sm_90a", "portable"} or None
        None for kernels that both paths have.
    seconds : float
    """

    work: Work
    path: KernelPath | None
    seconds: float


def kernel_samples(folder: Path) -> Iterator[Sample]:
    """Samples of all kinds of kernels from a machine's newest records, one launch each."""
    for bench, read in _READ:
        for record in newest(folder / f"{bench}.jsonl"):
            found = read(record["config"], record["metrics"])
            if found is not None:
                yield found


def _bytes(kind: str, nbytes_s: float, seconds: float, launches: int = 1) -> Sample:
    return Sample(Work(kind, 0.0, nbytes_s * seconds, launches), None, seconds)


def _flops(kind: str, path: KernelPath, tflops: float, ms: float, head_dim: int = 0) -> Sample:
    flops = tflops * 1e9 * ms
    return Sample(Work(kind, flops, 0.0, 1, flops / (4 * head_dim) if head_dim else 0.0), path, ms / 1e3)


def _matmul(c: Facts, m: Facts) -> Sample | None:
    """Back to back, as in a prefill, where the card is as warm."""
    mine = c["path"] != "cublas" and c["mode"] == "burst" and c["math"] == "bf16" and c["m"] >= FEWEST
    fits = mine and c.get("epilogue") != "gated in three"  # which no model asks for
    if not fits:
        return None
    return _product("matmul", c, m, c.get("epilogue") == "gated")


def _short(c: Facts, m: Facts) -> Sample | None:
    """Of few tokens or few rows, for what a launch takes besides."""
    kind = PRODUCTS.get(c.get("math", ""))
    if kind is None or c["path"] != "sm_90a" or "kernel" in c or c["m"] >= MANY:
        return None
    return _product(kind, c, m, c["epilogue"] == "swiglu")


def _product(kind: str, c: Facts, m: Facts, gated: bool) -> Sample:
    found = _flops(kind, c["path"], m["tflops"], m["ms"])
    return replace(found, work=replace(found.work, products=((Product(c["m"], c["n"], c["k"], gated), 1),)))


def _attention(c: Facts, m: Facts) -> Sample | None:
    own = c["path"] in ("sm_90a", "portable") and c["kv"] == "f16"
    return _flops("attention", c["path"], m["tflops"], m["ms"], c["head_dim"]) if own else None


def _lists(c: Facts, m: Facts) -> Sample | None:
    whole = c["queries"] == c["tokens"]
    return _flops("sparse", c["path"], m["tflops"], m["ms"], c["head_dim"]) if whole else None


def _sparse_portable(c: Facts, m: Facts) -> Sample | None:
    """Of these kernels no lists were timed by themselves."""
    portable = c["path"] == "portable"
    return _flops("sparse", "portable", m["tflops_live"], m["ms_forward"], c["head_dim"]) if portable else None


def _select(c: Facts, m: Facts) -> Sample | None:
    found = _flops("select", c["path"], m["tflops_score"], m["ms_score"])
    return replace(found, seconds=found.seconds + m["ms_means"] / 1e3)


def _bytes_attention(c: Facts, m: Facts) -> Sample | None:
    """Attention in eight bits of a drafter's layer, and what rounds its keys and values."""
    if c["stage"] == "round":
        return replace(_bytes("rounding", 1e9 * m["gb_s"], m["ms"] / 1e3), path=c["path"])
    found = _flops("attention int8", c["path"], m["tflops"], m["ms"], c["head_dim"])
    # Exponentials are made beside products.
    return replace(found, work=replace(found.work, exponentials=0.0)) if c["math"] == "int8" else None


def _few(c: Facts, m: Facts) -> Sample | None:
    return _bytes(f"keys {c['kv'].partition(' ')[0]}", 1e9 * m["gb_s"], m["ms"] / 1e3) if c["queries"] == 1 else None


def _vector(c: Facts, m: Facts) -> Sample | None:
    one = c["tokens"] == 1 and c["part"] != "step" and "layout" not in c
    return _bytes("vector", 1e9 * m["gb_s"], m["us"] / 1e6) if one else None


def _delta(c: Facts, m: Facts) -> Sample | None:
    if c["part"] == "prompt":
        config = find_shape(DELTA_SHAPE).config
        flops = prefill_cost(config, c["tokens"]).delta / len(config.delta_layers)
        return Sample(Work("delta", flops, 0.0, 4, blocks=scan_blocks(config)), c["path"], m["us"] / 1e6)
    return _bytes("delta step", 1e9 * m["gb_s"], m["us"] / 1e6) if c["tokens"] == 1 else None


def _importance(c: Facts, m: Facts) -> Sample | None:
    return _bytes("importance", 1e9 * m["gb_s"], m["ms"] / 1e3, 4)


def _traffic(c: Facts, m: Facts) -> Sample | None:
    return _bytes("traffic", 1e9 * m["gb_s"], m["us"] / 1e6 if "us" in m else m["ms"] / 1e3)


_READ: tuple[tuple[str, Callable[[Facts, Facts], Sample | None]], ...] = (
    ("matmul", _matmul),
    ("matmul_bytes", _short),
    ("attention", _attention),
    ("attention_lists", _lists),
    ("flashprefill_layer", _sparse_portable),
    ("flashprefill_layer", _select),
    ("byte_attention", _bytes_attention),
    ("attention_few", _few),
    ("decode_matmul", _vector),
    ("delta_mixer", _delta),
    ("importance", _importance),
    ("elementwise", _traffic),
    ("rows", _traffic),
)
