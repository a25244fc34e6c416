"""The device path of whole models without a device: every launch fits its declaration, and counts add up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from dry_walk import walked

from sp.gguf import GGUFFile
from sp.models import read_config
from sp.models.synthetic.synthetic import write_synthetic
from sp.session.loaded import embedded

FAMILIES = (
    *("tiny-llama:q4_k_m", "tiny-llama:bf16", "tiny-qwen2:q4_k_m", "tiny-qwen2:q8_0"),
    *("tiny-qwen3moe:q4_k_m", "tiny-qwen35moe:ud-q4_k_xl", "tiny-qwen3next:q4_k_m"),
    "tiny-mistral3:q4_k_m",
)
WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from sp.decode.base import greedy
from sp.kernels import forced_path
from sp.models import Hooks, load_model, prefill, prefill_layer_major
from sp.models.run.tree import TreeReader
N, NEW = 200, 6
model = load_model(sys.argv[2], device="cuda")
c, ids, told = model.config, np.arange(N), []
for path in ("sm_90a", "portable"):
    with forced_path(path):
        kinds = ("f16", False), ("q4_0", True), ("q8_0", None), ("5bit", None), ("k=q8_0,v=q4_0", False), ("f16", True)
        for kv, rotate in (kinds[int(kind)] for kind in sys.argv[3:]):
            cache = model.new_cache(N + NEW, kv, rotate=rotate)
            for chunk in (None, 40):
                cache.reset()
                logits = prefill(model, ids, ids, cache, chunk=chunk)
                assert (logits.shape, logits.dtype) == ((c.vocab,), np.float32), (logits.shape, logits.dtype)
                tokens = greedy(model, logits, N, cache, eos_ids=frozenset(), max_new_tokens=NEW)
                assert len(tokens) == NEW and cache.tokens == N + NEW - 1, (tokens, cache.tokens)
            cache.reset()
            look = lambda layer, q, cache: told.append((q.dtype, q.shape, cache.length(layer)))
            prefill_layer_major(model, ids, ids, cache, chunk=100, rows=40, hooks=Hooks(look, progress=lambda n: None))
            cache.reset()
            prefill(model, ids[:100], ids[:100], cache)
            reader = TreeReader(model, cache, most=16)
            assert len(reader.read_tree(ids[:16], ids[:16] - 1, ids[100:116]).choices) == 16
            reader.commit_path(ids[:3])
each = {(np.dtype(np.float16), (n, c.heads, c.head_dim), N) for n in (N, 40)}  # a hybrid's last layer alone attends
assert told and set(told) <= each, set(told)
dry_device.launches.clear()
cache = model.new_cache(N)
prefill(model, ids, ids, cache, chunk=100)
print(*(f"{name}={count}" for name, count in sorted(dry_device.launches.items())))
"""


EVERY = range(6)
"""Kinds of keys and values. Attention is the same code in all families: one dense model and one hybrid are led through
every kind, the others through the plain one and two that take turns."""
NAMES = ["target", "drafter", "tiny-qwen3:bf16", "tiny-qwen35:f32", *FAMILIES]


def walk(path: Path, kinds: Iterable[int]) -> dict[str, int]:
    """Launches of a prefill in two chunks, after a model has been led through everything else."""
    printed = walked(WALK, str(path), *map(str, kinds))
    return {name: int(count) for name, count in (item.split("=") for item in printed.split())}


@pytest.mark.parametrize("name", NAMES)
def test_every_launch_fits(name, tmp_path) -> None:
    shape, _, file_type = name.partition(":")
    path = write_synthetic(tmp_path / "m.gguf", shape, file_type) if file_type else embedded(name)
    with GGUFFile.open(path) as file:
        config = read_config(file)
    place = NAMES.index(name)
    some = EVERY if name in ("drafter", "tiny-qwen35:f32") else (0, 1 + place % 5, 1 + (place + 2) % 5)
    launches = walk(path, some)
    attention, delta = len(config.attention_layers), len(config.delta_layers)
    assert launches["gather_rows"] == launches["advance_counts"] == 2
    # The last layer attends for the last chunk's last row alone, so its heads go one by one.
    assert launches.get("attention_heads", 0) == 2 * (attention - 1)
    assert launches["kv_append"] == 2 * 2
    assert launches.get("delta_chunk", 0) == 2 * delta
    # Of the last layer's two chunks the first has no row to put out: no product but those of k and v.
    assert launches.get("attention_sm90", 0) == 2 * (attention - 1)
    assert launches["attention_split"] == launches["attention_combine"] == 1
