"""Sparse attention and Gated DeltaNet: whole ops, on both paths where there are two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from fingerprint.finding import call, find
from fingerprint.inputs import Pages, device, queries, rng_of, to_bf16

Case = tuple[str, Callable[[], Any]]


def selectors() -> dict[str, Any]:
    """By name, the ways to choose key blocks."""
    flash, top = find("FlashPrefill"), find("TopDensity")
    small = {"sink": 1, "window": 2, "last_n": 1}
    return {
        "alpha 0": flash(0.0),
        "alpha 0.3": flash(0.3, **small),
        "alpha 0.85 unforced": flash(0.85, maximum="unforced", **small),
        "group first": flash(0.3, share="group", visibility="first", **small),
        "mean correction": flash(0.9, mean_correction=True, **small),
        "v2": flash(0.3, share="group", visibility="first", mean_correction=True, **small),
        "budget 5": flash(1.0, min_budget=5),
        "density 0.3": top(0.3),
        "density 0.2 group": top(0.2, share="group"),
        "dense": find("Dense")(),
        "streaming": find("Streaming")(1, 2),
    }


def sparse(path: str, name: str, shape: tuple[int, int, int], kv: str, n: int, tokens: int) -> Any:
    """Which blocks are chosen, and attention over them."""
    heads, kv_heads, d = shape
    pages, q = Pages(tokens, kv_heads, d, kv, peaked=1.7), queries(n, heads, d, size=1.5)
    selector = selectors()[name]
    given = pages.named(q=q, scale=d**-0.5)
    with find("forced_path")(path):
        lists = call(selector.select, **given)
        out, counts = call(find("sparse_attention"), **given, selector=selector)
    means = call(find("block_means"), **given)
    return [find("mask_of")(lists, -(-tokens // 128)), lists.counts, out, counts, means]


def sparse_cases() -> Iterator[Case]:
    """Selection and sparse attention."""
    for path in ("sm_90a", "portable"):
        for shape in ((2, 1, 64), (12, 2, 128), (6, 1, 256)):
            for name in selectors():
                for n, tokens in ((1500, 1500), (700, 2345)):
                    yield (
                        f"sparse {path} {shape} {name} {n} of {tokens}",
                        partial(sparse, path, name, shape, "F16", n, tokens),
                    )
            yield f"sparse {path} {shape} Q4_0", partial(sparse, path, "alpha 0.3", shape, "Q4_0", 500, 1500)
    yield "sparse long", partial(sparse, "sm_90a", "alpha 0.3", (4, 2, 128), "F16", 1000, 70 * 128 + 17)


def mixer(sizes: tuple[int, int, int], tokens: int, seed: int = 0) -> dict[str, Any]:
    """Inputs, parameters and memory of a layer."""
    key_heads, value_heads, dim = sizes
    channels = (2 * key_heads + value_heads) * dim
    rng = rng_of("delta", sizes, tokens, seed)
    normal = rng.standard_normal
    arrays = {
        "qkv": to_bf16(normal((tokens, channels))),
        "z": to_bf16(normal((tokens, value_heads * dim))),
        "alpha": normal((tokens, value_heads)).astype(np.float32),
        "beta": normal((tokens, value_heads)).astype(np.float32),
        "conv": (0.5 * normal((channels, 4))).astype(np.float32),
        "a": (-0.1 * rng.exponential(1.0, value_heads)).astype(np.float32),
        "dt_bias": normal(value_heads).astype(np.float32),
        "norm": (1 + 0.1 * normal(dim)).astype(np.float32),
        "history": normal((3, channels)).astype(np.float16).astype(np.float32),
        "recurrent": (0.1 * normal((value_heads, dim, dim))).astype(np.float32),
    }
    return {name: device(array) for name, array in arrays.items()}


def parts(sizes: tuple[int, int, int], arrays: dict[str, Any]) -> tuple[list[Any], Any, Any]:
    """What the ops take: inputs, parameters, state."""
    params = find("DeltaParams")(*(arrays[name] for name in ("conv", "a", "dt_bias", "norm")), 1e-6, *sizes)
    state = SimpleNamespace(conv=arrays["history"], recurrent=arrays["recurrent"])
    return [arrays[name] for name in ("qkv", "z", "alpha", "beta")], params, state


def read(path: str, sizes: tuple[int, int, int], tokens: int, rows: int) -> Any:
    """delta_mixer, twice, so that the state goes on."""
    arrays = mixer(sizes, tokens)
    inputs, params, state = parts(sizes, arrays)
    inputs[1] = inputs[1][tokens - rows :]
    with find("forced_path")(path):
        found = [find("delta_mixer")(*inputs, params, state, rows) for _ in range(2)]
    return [*found, state.conv, state.recurrent]


def guessed(sizes: tuple[int, int, int], nodes: int, kind: str) -> Any:
    """delta_tree and delta_keep of the longest path."""
    rng = rng_of("delta tree", nodes)
    parents = [-1, *((int(rng.integers(0, i)) if kind == "tree" else i - 1) for i in range(1, nodes))]
    path = [nodes - 1]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    inputs, params, state = parts(sizes, mixer(sizes, nodes))
    trace = find("DeltaTrace").new(1, 64, params, "cuda")
    y = find("delta_tree")(*inputs, params, state, device(find("ancestry")(np.array(parents))), trace, 0)
    kept = device(np.array([*path[::-1], *[0] * (64 - len(path))], np.int32)), device(np.array([len(path)], np.int32))
    find("delta_keep")(trace, find("DeltaStates").of([state]), *kept)
    noted = [getattr(trace, name)[0, :nodes] for name in ("k", "u", "g", "inputs")]
    return [y, *noted, state.conv, state.recurrent]


def delta_cases() -> Iterator[Case]:
    """Recurrent layers."""
    for sizes in ((4, 8, 64), (2, 6, 128), (16, 48, 128)):
        for path in ("sm_90a", "portable"):
            for tokens, rows in ((1, 1), (2, 2), (15, 15), (64, 64), (129, 5), (1000, 1000)):
                yield f"delta {path} {sizes} {rows} of {tokens}", partial(read, path, sizes, tokens, rows)
        for nodes in (1, 2, 15, 16, 23, 33, 64):
            for kind in ("tree", "chain"):
                yield f"delta_tree {sizes} {kind} of {nodes}", partial(guessed, sizes, nodes, kind)
