"""Whole models of both families: logits of every way to walk, and greedy decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fingerprint.finding import find, method
from fingerprint.inputs import rng_of

Case = tuple[str, Callable[[], Any]]
EMBEDDED = ("target", "drafter")
RANDOM = ("tiny-qwen3:q4_k_m", "tiny-qwen35:q4_k_m", "tiny-qwen3:bf16", "tiny-qwen35:q8_0")
CACHES = (("f16", False), ("q4_0", True), ("f16", True), ("q4_0", False))
PATHS = ("sm_90a", "portable")
N, NEW = 700, 40
BLOCK = 16


class Files:
    """Folder of random models, which two commits must share: what makes their bytes may change."""

    folder = Path()


@cache
def path_of(name: str) -> Path:
    """The file of an embedded or a random model, made where it is missing."""
    if name in EMBEDDED:
        return Path(find("embedded", "load")(name))
    shape, _, kind = name.partition(":")
    path = Files.folder / f"{shape}-{kind}.gguf"
    return path if path.exists() else Path(find("write_synthetic")(path, shape, kind, seed=3))


@cache
def model_of(name: str) -> Any:
    """On the device."""
    return find("load_model")(path_of(name), device="cuda")


@cache
def ids_of(name: str, n: int = N) -> np.ndarray:
    """Tokens to read: of the sample document, or random ones."""
    if name not in EMBEDDED:
        return rng_of("ids").integers(0, 2000, n)
    text, file = find("sample", "studies")()[0], find("GGUFFile").open(path_of(name))
    return np.resize(np.asarray(find("Tokenizer").from_gguf(file).encode(text[: 4 * n]).ids), n)


def written(shape: str, kind: str) -> Any:
    """What the writer of random models writes today."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = find("write_synthetic")(Path(folder) / "m.gguf", shape, kind, seed=3)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def walked(path: str, name: str, kv: str, rotate: bool, how: str, chunk: int | None) -> Any:
    """Logits of a prefill and of the three steps after it, and what the cache holds."""
    model, ids, where = model_of(name), ids_of(name), np.arange(N)
    with find("forced_path")(path):
        cache_ = model.new_cache(N + 8, kv, rotate=rotate)
        options = {} if chunk is None else {"chunk": chunk}
        found = [find(how, "models")(model, ids, where, cache_, **options)]
        found += [find("decode_step")(model, 5 + i, N + i, cache_) for i in range(3)]
    return [*found, *remembered(model, cache_)]


def remembered(model: Any, cache_: Any) -> list[Any]:
    """Keys, values and states."""
    kept = [array for layer in model.config.attention_layers for array in cache_.gather(layer)]
    states = [cache_.state(layer) for layer in model.config.delta_layers]
    return kept + [array for state in states for array in (state.conv, state.recurrent)]


def sparsely(path: str, name: str, kv: str, chunk: int | None) -> Any:
    """A prefill that reads some key blocks."""
    n = 2500
    model, where = model_of(name), np.arange(n)
    with find("forced_path")(path):
        cache_ = model.new_cache(n + 1, kv, rotate=kv == "q4_0")
        selector = find("FlashPrefill")(0.3, sink=1, window=1, last_n=1)
        logits, densities = find("prefill_sparse")(
            model, np.resize(ids_of(name), n), where, cache_, selector, chunk=chunk
        )
        return [logits, list(densities), find("decode_step")(model, 5, n, cache_)]


def branched(path: str, name: str, kv: str, nodes: int) -> Any:
    """A tree in one pass, a path of it kept, and a step after it."""
    model, ids, start = model_of(name), ids_of(name), 200
    rng = rng_of("branches", nodes)
    parents = np.array([-1, *(int(rng.integers(max(0, i - 3), i)) for i in range(1, nodes))])
    depths = np.zeros(nodes, np.int64)
    for node, parent in enumerate(parents[1:], 1):
        depths[node] = depths[parent] + 1
    path_, at = [], int(depths.argmax())
    while at >= 0:
        path_.append(at)
        at = int(parents[at])
    with find("forced_path")(path):
        store = model.new_cache(start + nodes + 8, kv, rotate=kv == "q4_0")
        found = [find("prefill", "models")(model, ids[:start], np.arange(start), store)]
        reader = find("TreeReader")(model, store, (0, model.config.layers - 1))
        seen = reader.read_tree(ids[start : start + nodes], parents, start + depths)
        found += [seen.logits.copy(), seen.choices.copy(), seen.features.copy()]
        method(reader, "keep_path")(np.array(path_[::-1]))
        found.append(find("decode_step")(model, 7, start + len(path_), store))
    return [*found, *remembered(model, store)]


def answered(path: str, name: str, kv: str, eager: bool) -> Any:
    """Tokens decoded one by one, as a CUDA graph or launch by launch."""
    model, start = model_of(name), 120
    with find("forced_path")(path):
        store = model.new_cache(start + NEW + 1, kv, rotate=kv == "q4_0")
        logits = find("prefill", "models")(model, ids_of(name)[:start], np.arange(start), store)
        tokens = list(find("GraphDecoder")(model, store, NEW, eager=eager).tokens(logits, start, NEW))
        return [tokens, find("decode_step")(model, tokens[-1], start + NEW - 1, store)]


def model_cases() -> Iterator[Case]:
    """Logits and greedy answers."""
    for name in RANDOM:
        yield f"synthetic {name} bytes", partial(written, *name.split(":"))
    for name in (*EMBEDDED, *RANDOM):
        for path in PATHS:
            for kv, rotate in CACHES:
                label = f"{path} {name} {kv}{' rotated' if rotate else ''}"
                yield f"prefill {label}", partial(walked, path, name, kv, rotate, "prefill", None)
                if (kv == "q4_0") == rotate:
                    yield f"prefill chunks {label}", partial(walked, path, name, kv, rotate, "prefill", 100)
                    yield f"by layer {label}", partial(walked, path, name, kv, rotate, "prefill_by_layer", 256)
            for kv in ("f16", "q4_0"):
                for nodes in (3, 16, 23, 64):
                    yield f"tree {path} {name} {kv} {nodes}", partial(branched, path, name, kv, nodes)
                for eager in (True, False):
                    yield f"greedy {path} {name} {kv} eager={eager}", partial(answered, path, name, kv, eager)
            for kv, chunk in (("f16", None), ("q4_0", 1000)):
                yield f"sparse prefill {path} {name} {kv}", partial(sparsely, path, name, kv, chunk)
