"""Seeded inputs on the device, the same on every commit: made in NumPy alone."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import numpy as np

from fingerprint.finding import find, known

FORMATS = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "BF16", "F16")
K_QUANTS = FORMATS[:3]
DISTINCT = 64


def rng_of(*what: Any) -> np.random.Generator:
    """A generator for what is named."""
    return np.random.default_rng(zlib.crc32(repr(what).encode()))


def to_bf16(array: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bf16 (ties to even), as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def device(array: np.ndarray) -> Any:
    """A copy on the device."""
    import cupy

    return cupy.asarray(np.ascontiguousarray(array))


def stream(tokens: int, width: int, seed: int = 0, outliers: float = 50.0) -> np.ndarray:
    """Normal float32 values, a few columns far out, as activations have them."""
    rng = rng_of("stream", tokens, width, seed)
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    x[:, rng.integers(0, width, 4)] *= np.float32(outliers)
    return x


def bf16(tokens: int, width: int, seed: int = 0) -> Any:
    """`stream` as BF16 bits on the device."""
    return device(to_bf16(stream(tokens, width, seed)))


def f32(tokens: int, width: int, seed: int = 0) -> Any:
    """`stream` on the device."""
    return device(stream(tokens, width, seed))


def norm(width: int, seed: int = 0) -> tuple[Any, float]:
    """Weight and eps of an RMS norm."""
    return device(rng_of("norm", width, seed).uniform(0.5, 1.5, width).astype(np.float32)), 1e-6


@cache
def encoded(name: str, width: int, seed: int = 0) -> np.ndarray:
    """Rows as in a file; a BlockFormat's own encoder makes them, which has tests of its own."""
    values = 0.05 * rng_of("weight", name, width, seed).standard_normal((DISTINCT, width))
    return np.asarray(find("format_by_name")(name).encode(values.astype(np.float32)))


@cache
def weight(name: str, out: int, width: int, seed: int = 0) -> Any:
    """A packed weight of `DISTINCT` distinct rows, each time in another place."""
    fmt, rows = find("format_by_name")(name), encoded(name, width, seed)
    order = rng_of("rows", out, seed).integers(0, DISTINCT, out)
    return find("pack")("w", fmt, (out, width), device(rows[order]))


class Pages:
    """Keys and values in scattered pages that are NaN wherever no token lies."""

    def __init__(self, tokens: int, kv_heads: int, d: int, kv: str = "F16", seed: int = 0, peaked: float = 1.0) -> None:
        rng = rng_of("pages", tokens, kv_heads, d, kv, seed, peaked)
        self.tokens, self.d, self.fmt, self.kv_heads = tokens, d, find("format_by_name")(kv), kv_heads
        blocks = -(-tokens // 128)
        self.host_table = rng.permutation(blocks + 3)[:blocks]
        centres = peaked * rng.standard_normal((blocks, kv_heads, d))
        at = np.arange(tokens)
        pages = []
        for _ in range(2):
            values = rng.standard_normal((tokens, kv_heads, d)) + centres[at // 128] * (peaked > 1)
            rows = self.fmt.encode(values.astype(np.float32))
            pool = np.full((blocks + 3, 128, kv_heads, rows.shape[-1]), 0xFF, np.uint8)
            pool[self.host_table[at // 128], at % 128] = rows
            pages.append(device(pool))
        self.k, self.v = pages
        self.table = device(self.host_table.astype(np.int32))

    def named(self, rotated: bool = False, counted: Any = None, **more: Any) -> dict[str, Any]:
        """By the names that parameters of ops have had; `counted` is the number of tokens on the device."""
        apart = {"k_pages": self.k, "v_pages": self.v, "pages": self.k, "table": self.table, "fmt": self.fmt}
        block = self.d if rotated else 0
        tokens = self.tokens if counted is None else counted
        view = paged_view(self.k, self.v, self.table, self.tokens, self.fmt, rotated, counted)
        return {**apart, "tokens": tokens, "rotate_block": block, "rotate": rotated, "at": view, **more}


def paged_view(k: Any, v: Any, table: Any, tokens: int, fmt: Any, rotated: bool, total: Any = None) -> Any:
    """One value for all of a sequence's pages, on commits that have one."""
    return find("PagedKV")(k, v, table, tokens, fmt, rotated, total=total) if known("PagedKV") else None


def queries(n: int, heads: int, d: int, seed: int = 0, size: float = 1.0) -> Any:
    """Float16 queries."""
    values = size * rng_of("queries", n, heads, d, seed).standard_normal((n, heads, d))
    return device(values.astype(np.float16))
