"""Attention of every kind, what happens to heads around it, and importance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fingerprint.finding import call, find, known
from fingerprint.inputs import Pages, device, f32, paged_view, queries, rng_of, to_bf16

Case = tuple[str, Callable[[], Any]]
SHAPES = ((2, 1, 64), (12, 2, 128), (24, 4, 256))
CACHES = (("F16", False), ("Q4_0", False), ("Q4_0", True), ("F16", True))
SIZES = ((1, 0), (1, 1000), (5, 129), (16, 700), (33, 100), (64, 2048), (65, 0), (130, 1000), (300, 0))


def wide_of(n: int, heads: int, d: int) -> Any:
    """Gates, behind the queries they came with."""
    return device(to_bf16(rng_of("wide", n, heads, d).standard_normal((n, heads, 2 * d))))


def paged(path: str, shape: tuple[int, int, int], kv: str, rotated: bool, n: int, before: int) -> Any:
    """paged_attention and attention_output, gated and not."""
    heads, kv_heads, d = shape
    pages, q = Pages(before + n, kv_heads, d, kv), queries(n, heads, d)
    given = pages.named(rotated, q=q)
    with find("forced_path")(path):
        plain = call(find("paged_attention"), **given)
        return [plain, call(find("attention_output"), **given, wide=None),
                call(find("attention_output"), **given, wide=wide_of(n, heads, d))]  # fmt: skip


def lists(heads: int, n: int, tokens: int) -> Any:
    """Random ascending key blocks, the diagonal often among them."""
    rng, rows, width = rng_of("lists", heads, n, tokens), -(-n // 128), -(-tokens // 128)
    counts, indices = np.zeros((heads, rows), np.int32), np.full((heads, rows, width), 1 << 30, np.int32)
    for head, row in np.ndindex(heads, rows):
        last = (tokens - n + min(128 * row + 127, n - 1)) // 128
        kept = np.sort(rng.permutation(last + 1)[: rng.integers(0, last + 2)])
        kept = kept if (head + row) % 2 else np.union1d(kept, [last])
        counts[head, row] = len(kept)
        indices[head, row, : len(kept)] = kept
    return find("BlockLists")(device(counts), device(indices))


def over_lists(path: str, shape: tuple[int, int, int], kv: str, n: int, before: int, listed: bool) -> Any:
    """The prefill kernel of a path over all or some key blocks, with the sums of its softmax."""
    import cupy

    heads, kv_heads, d = shape
    pages, q, lse = Pages(before + n, kv_heads, d, kv), queries(n, heads, d), cupy.empty((heads, n), np.float32)
    some = lists(heads, n, before + n) if listed else None
    given = pages.named(q=q, scale=d**-0.5, blocks=some, lists=some, lse=lse)
    return [call(find("prefill", f"attention_{path}"), **given), lse]


def few(kernel: str, shape: tuple[int, int, int], kv: str, rotated: bool, n: int, before: int) -> Any:
    """decode or split themselves, their count on the device."""
    heads, kv_heads, d = shape
    pages, q = Pages(before + n, kv_heads, d, kv), queries(n, heads, d)
    count = device(np.array([before + n], np.int32))
    given = pages.named(rotated, count, q=q, finish=True, wide=wide_of(n, heads, d))
    return call(find(kernel, f"attention_{kernel}"), **given)


def tree(shape: tuple[int, int, int], kv: str, rotated: bool, n: int, before: int, window: int | None) -> Any:
    """tree_attention under a random tree."""
    heads, kv_heads, d = shape
    rng = rng_of("tree", n, before)
    parents = np.array([-1, *(int(rng.integers(0, i)) for i in range(1, n))])
    pages, q = Pages(before + n, kv_heads, d, kv), queries(n, heads, d)
    given = pages.named(rotated, q=q, seen=device(find("ancestry")(parents)), window=window)
    return [call(find("tree_attention"), **given, wide=gate) for gate in (None, wide_of(n, heads, d))]


def kernels() -> Iterator[Case]:
    """All attention."""
    for shape in SHAPES:
        for kv, rotated in CACHES:
            name = f"{shape} {kv}{' rotated' if rotated else ''}"
            for n, before in SIZES:
                for path in ("sm_90a", "portable"):
                    yield f"attention {path} {name} {n}+{before}", partial(paged, path, shape, kv, rotated, n, before)
            for n, before in ((1, 2500), (2, 0)):
                yield f"decode {name} {n}+{before}", partial(few, "decode", shape, kv, rotated, n, before)
            for n, before in ((9, 2500), (23, 0), (64, 129)):
                yield f"split {name} {n}+{before}", partial(few, "split", shape, kv, rotated, n, before)
            for n, before, window in ((16, 0, None), (23, 2041, None), (64, 300, None), (16, 2041, 100)):
                case = partial(tree, shape, kv, rotated, n, before, window)
                yield f"tree_attention {name} {n}+{before} window={window}", case
        for n, before in ((1, 0), (129, 0), (300, 701), (1000, 24)):
            for listed in (False, True):
                for path, kv in (("sm90", "F16"), ("portable", "F16"), ("portable", "Q4_0")):
                    if path == "portable" or shape[2] > 64:
                        label = f"prefill {path} {shape} {kv} {n}+{before} lists={listed}"
                        yield label, partial(over_lists, path, shape, kv, n, before, listed)


def rotary(base: float, dim: int) -> dict[str, Any]:
    """A rotary embedding, by the names that its parameters have had."""
    one = find("Rope")(base, dim) if known("Rope") else None
    return {"base": base, "rope_dim": dim, "rotary": one, "rope": one}


def heads_of(shape: tuple[int, int, int], wide: int, dim: int, kv: str, rotated: bool, tokens: int, start: int) -> Any:
    """head_norm_rope, attention_heads, context_heads and unrotate."""
    heads, kv_heads, d = shape
    rng = rng_of("heads", *shape, tokens, start)
    q, k, v = (device(to_bf16(rng.standard_normal((tokens, h, s))))
               for h, s in ((heads, wide * d), (kv_heads, d), (kv_heads, d)))  # fmt: skip
    one, other = (device(rng.uniform(0.5, 2, d).astype(np.float32)) for _ in range(2))
    where = device(np.sort(rng.integers(0, 200_000, tokens)))
    more = {"eps": 1e-6, "positions": where, **rotary(1e6, dim)}
    turned = call(find("head_norm_rope"), x=q, weight=one, head_dim=d, **more)
    found, fmt = [turned.copy()], find("format_by_name")(kv)
    table = device(rng.permutation(5).astype(np.int32))
    norms = find("HeadNorms")(one, other, 1e-6) if known("HeadNorms") else None
    for op in ("attention_heads", "context_heads"):
        pages = [device(np.full((5, 128, kv_heads, fmt.row_bytes(d)), 0xA5, np.uint8)) for _ in range(2)]
        apart = {"k_pages": pages[0], "v_pages": pages[1], "table": table, "start": start, "fmt": fmt}
        given = {"q": q, "k": k, "v": v, "q_norm": one, "k_norm": other, "norms": norms, "rotate": rotated, **apart}
        given |= {"at": paged_view(*pages, table, start, fmt, rotated), **more}
        found += [call(find(op), **given), *pages]
    return [*found, call(find("unrotate"), x=turned, **more)]


def pages_of(d: int, kv: str, block: int, tokens: int) -> Any:
    """kv_append, kv_gather and unpacked_pages; hadamard; gate_output."""
    rng = rng_of("append", d, kv, block, tokens)
    fmt, table = find("format_by_name")(kv), device(rng.permutation(4).astype(np.int32))
    values = rng.standard_normal((tokens, 2, d)).astype(np.float32)
    found = []
    for bits in (to_bf16(values), values.astype(np.float16)):
        pages = device(np.full((4, 128, 2, fmt.row_bytes(d)), 0xA5, np.uint8))
        find("kv_append")(pages, table, 7, device(bits), fmt, block)
        found += [pages, find("kv_gather")(pages, table, 7 + tokens, fmt)[7:]]
    gates = wide_of(tokens, 2, d)
    found += [find("hadamard")(device(values.astype(np.float16)), d)]
    turned = ((gates, True), (None, True), (gates, False))
    return found + [find("gate_output")(device(to_bf16(values)), gate, turn) for gate, turn in turned]


def weighed(shape: tuple[int, int, int], kv: str, n: int, tokens: int, causal: bool, options: tuple[Any, ...]) -> Any:
    """importance of two layers, one after the other."""
    heads, kv_heads, d = shape
    reduction, running, found = find("Reduction")(*options), None, []
    for seed in (1, 2):
        pages, q = Pages(tokens, kv_heads, d, kv, seed), queries(n, heads, d, seed, 3.0)
        got = call(find("importance", "importance"), **pages.named(q=q, reduction=reduction, running=running),
                   causal=causal, by_head=True)  # fmt: skip
        running = got.running
        found += [got.running.copy(), got.by_layer, got.by_head]
    return [*found, reduction.finish(running.get(), heads)]


def around() -> Iterator[Case]:
    """What surrounds attention."""
    for shape, wide, dim in (((24, 4, 256), 2, 64), ((4, 2, 128), 1, 128), ((2, 1, 64), 1, 64)):
        for kv, rotated in CACHES:
            for tokens, start in ((1, 0), (5, 126), (130, 1)):
                label = f"heads {shape} {kv} rotated={rotated} {tokens}@{start}"
                yield label, partial(heads_of, shape, wide, dim, kv, rotated, tokens, start)
    for d in (64, 128, 256):
        for kv in ("F16", "Q4_0"):
            for block in sorted({0, 64, d}):
                yield f"pages d={d} {kv} block={block}", partial(pages_of, d, kv, block, 133)
    orders = ("pool,heads,queries", "heads,queries,pool", "queries,pool,heads", "heads,pool,queries")
    rules = ("max", "mean", 13, "renormalise"), ("mean", "max", 7, "zero")
    reductions = [(order, *rule) for order in orders for rule in rules]
    for shape in ((16, 8, 128), (24, 4, 256), (6, 1, 64)):
        for kv in ("F16", "Q4_0"):
            for n, tokens, causal in ((1, 1, True), (8, 1000, True), (13, 2003, False), (40, 128, True)):
                label = f"importance {shape} {kv} {n} of {tokens} causal={causal}"
                yield label, partial(weighed, shape, kv, n, tokens, causal, ())
    for options in (*reductions, ("pool,heads,queries", "max", "max", 64, "renormalise", "max")):
        yield f"importance {options}", partial(weighed, (16, 8, 128), "F16", 5, 700, True, options)


def chosen(vocab: int, rows: int) -> Any:
    """argmax, the likeliest tokens, and draws."""
    logits = f32(rows, vocab, 1)
    found = [find("argmax")(logits), find("top_logprobs")(logits, min(8, vocab))]
    seed, step = device(np.array([11], np.int64)), device(np.zeros(1, np.int64))
    for options in ((1.0, 0, 1.0), (0.7, 20, 0.8), (1.5, 1000, 1.0), (3.0, 30000, 0.9)):
        found += [find("sample", "ops")(logits[:1], find("Sampling")(*options), seed, step) for _ in range(3)]
    numbers = rng_of("numbers").random(rows)
    less = f32(rows, vocab, 2)
    return [*found, *(find("draw_tokens")(logits, 0.7, numbers, taken) for taken in (None, less))]


def sampling() -> Iterator[Case]:
    """Tokens from logits."""
    for vocab, rows in ((5, 1), (1000, 16), (32768, 23), (248320, 4)):
        yield f"sampling {rows}x{vocab}", partial(chosen, vocab, rows)
