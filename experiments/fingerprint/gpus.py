"""Two GPUs: a prompt that they read together, and a model that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from fingerprint.finding import find, known
from fingerprint.models import PATHS, ids_of, path_of

Case = tuple[str, Callable[[], Any]]
GPUS, N = 2, 3000


@cache
def group() -> Any:
    """The first two GPUs."""
    return find("NcclGroup")(tuple(range(GPUS)))


@cache
def copies(name: str) -> list[Any]:
    """A model on each GPU."""
    import cupy

    found = []
    for device in range(GPUS):
        with cupy.cuda.Device(device):
            found.append(find("load_model")(path_of(name), device="cuda"))
    return found


def together(path: str, name: str, kv: str, sparse: bool) -> Any:
    """Last queries and all keys of every layer of a prompt that both GPUs read."""
    seen: list[Any] = []

    def look(layer: int, q: Any, store: Any) -> None:
        seen.extend([q.get(), *(part.get() for part in store.gather(layer))])

    attend = find("SparseAttention")(find("FlashPrefill")(0.1)) if sparse else find("dense_attention")
    with find("forced_path")(path):
        find("read_by_layer_on")(
            group(), copies(name), np.resize(ids_of(name), N), np.arange(N),
            find("Hooks")(look) if known("Hooks") else look, attend=attend, rows=40, kv=kv, rotate=kv == "q4_0",
        )  # fmt: skip
    return seen


def shared(path: str, name: str, chunk: int) -> Any:
    """Logits of a prefill, of a step and of a tree by a model that both GPUs share."""
    shards = find("load_shards")(path_of(name), group(), device="cuda")
    ids = ids_of(name)

    def work(part: Any) -> Any:
        n = 500
        store = part.new_cache(n + 40)
        found = [find("prefill", "models")(part, ids[:n], np.arange(n), store, chunk=chunk)]
        found.append(find("decode_step")(part, 5, n, store))
        tree = find("TreeReader")(part, store, (0,), most=16).read_tree(ids[:8], np.arange(8) - 1, n + 1 + np.arange(8))
        return [one.get() for one in (*found, tree.logits, tree.features)]

    with find("forced_path")(path):
        return shards.run(work)


def gpu_cases() -> Iterator[Case]:
    """None without two GPUs."""
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < GPUS:
        return
    for path in PATHS:
        for name in ("drafter", "tiny-qwen3:q4_k_m"):
            for kv, sparse in (("f16", False), ("f16", True), ("q4_0", False)):
                yield f"two GPUs {path} {name} {kv} sparse={sparse}", partial(together, path, name, kv, sparse)
        for name in ("target", "tiny-qwen3:bf16", "tiny-qwen35:q8_0"):
            for chunk in (100, 1000):
                yield f"shared {path} {name} {chunk}", partial(shared, path, name, chunk)
