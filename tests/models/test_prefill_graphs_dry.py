"""Graphs of short prefills on a device that only counts: what is replayed, what is counted, what memory stays."""

from __future__ import annotations

import pytest
from dry_walk import walked
from twice_as_deep import write_deep

START = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
import numpy as np
from sp.models import Hooks, load_model, prefill
from sp.models.run.graph import PrefillGraphs
model = load_model(sys.argv[2], device="cuda")

def read(n, cache, graphs, **options):
    before, start = dry_device.launches.total(), cache.tokens
    logits = prefill(model, np.arange(n) % 999, np.arange(start, start + n), cache, graphs=graphs, **options)
    assert logits.shape == (model.config.vocab,)
    assert {cache.length(layer) for layer in range(model.config.layers)} == {start + n}, (start, n)
    return dry_device.launches.total() - before
"""
WALK = (
    START
    + """
cache = model.new_cache(4000)
graphs = PrefillGraphs(model, cache)
plain = read(500, cache, None)
assert graphs.take_counts() == {}
runs = [("eager", 500), ("captured", 512), ("replayed", 400), ("eager", 300), ("replayed", 385)]
for way, n in runs:  # sizes 512, 512, 512, 384, 512
    launches = read(n, cache, graphs)
    assert graphs.take_counts() == {way: n}, (way, n)
    assert launches < plain / 2.5 if way == "replayed" else launches >= plain, (way, launches, plain)
read(2, cache, graphs)
assert graphs.take_counts() == {"eager": 2}  # as few as no convolution remembers
cache.reset()
read(3000, cache, graphs, chunk=2000)  # two runs; the first, the largest so far, drops what there is
assert graphs.take_counts() == {"eager": 3000}
cache.reset()
read(3000, cache, graphs, chunk=2000)
assert graphs.take_counts() == {"captured": 3000}
cache.reset()
read(3000, cache, graphs, chunk=2000)
assert graphs.take_counts() == {"replayed": 3000}
for way in ("eager", "captured", "replayed"):  # no room for padding, so a size of its own
    cache.crop(3000)
    read(990, cache, graphs)
    assert graphs.take_counts() == {way: 990} and cache.tokens == 3990
cache.reset()
seen = []
hooks = Hooks(after_layer=lambda layer, x: seen.append(layer))
prefill(model, np.arange(500), np.arange(500), cache, graphs=graphs, hooks=hooks)
assert seen == list(range(model.config.layers)) and graphs.take_counts() == {}
positions = np.concatenate([np.arange(300), np.arange(1000, 1200)])
cache.reset()
prefill(model, np.arange(500), positions, cache, graphs=graphs, gaps="compact")
assert cache.tokens == 500
graphs.end()
"""
)


@pytest.mark.parametrize("name", ["tiny-qwen3:q4_k_m", "tiny-qwen35:q4_k_m", "tiny-qwen3moe:q4_k_m", "tiny-llama:bf16"])
def test_runs_of_a_size_share_a_graph_and_counts_add_up(name, tmp_path) -> None:
    walked(WALK, str(write_deep(tmp_path, *name.split(":"))))


MEMORY = (
    START
    + """
def used():
    return dry_memory.pool.used_bytes()

cache = model.new_cache(4000)
for n in (2048, *range(16, 128, 16), *range(128, 2048, 128)):  # what kernels keep for themselves, for each graph's size
    read(n, cache, None)
    cache.reset()
before = used()
graphs = PrefillGraphs(model, cache)
for n in (2048, 2048):
    read(n, cache, graphs)
    cache.reset()
largest = used() - before
for n in (*range(16, 2048, 16),) * 2:
    read(n, cache, graphs)
    cache.reset()
assert used() - before <= 1.2 * largest, (used() - before, largest)
assert graphs.take_counts()["replayed"] > 0
graphs.end()
del graphs
assert used() <= before + (64 << 10), (used(), before)
"""
)


def test_memory_is_that_of_the_largest_run_and_is_given_back(tmp_path) -> None:
    walked(MEMORY, str(write_deep(tmp_path, "tiny-qwen35", "q4_k_m")))


LEFT = (
    START
    + """
from dataclasses import replace
cache = model.new_cache(2000, "q4_0")
graphs = PrefillGraphs(model, cache)
for way in ("eager", "captured", "replayed", "eager"):  # packed pages are unpacked to what they hold
    if way != "eager" or not cache.tokens:
        cache.reset()
    read(300, cache, graphs)
    assert graphs.take_counts() == {way: 300}, way
for way in ("eager", "captured", "replayed"):  # few queries read them as they are
    read(40, cache, graphs)
    assert graphs.take_counts() == {way: 40}, way
graphs.end()

eager = PrefillGraphs(model, model.new_cache(2000), eager=True)
for _ in range(3):
    read(300, eager._cache, eager)
assert eager.take_counts() == {"eager": 900}
eager.end()

cache = model.new_cache(2000)
graphs = PrefillGraphs(model, cache)
for way in ("eager", "captured", "replayed"):
    read(300, cache, graphs)
    assert graphs.take_counts() == {way: 300}
moved = model.weights
model.weights = replace(moved)  # weights elsewhere: what was captured knows where they were
read(300, cache, graphs)
assert graphs.take_counts() == {"eager": 300}

def refuse(self):
    raise RuntimeError("operation not permitted when stream is capturing")

dry_device.Stream.end_capture = refuse
read(300, cache, graphs)
assert graphs.take_counts() == {"eager": 300} and "not permitted" in graphs.refused, graphs.refused
for _ in range(2):
    read(40, cache, graphs)
assert graphs.take_counts() == {"eager": 80}
graphs.end()
"""
)


def test_what_cannot_be_captured_is_read_launch_by_launch(tmp_path) -> None:
    walked(LEFT, str(write_deep(tmp_path, "tiny-qwen35", "q4_k_m")))


KEPT = (
    START
    + """
import gc
from sp.kernels import forced_path
from sp.kernels.workspace import Workspace

cache = model.new_cache(4000)
for path in ("sm_90a", "portable"):
    with forced_path(path):
        graphs = PrefillGraphs(model, cache)
        for _ in range(3):
            cache.reset()
            for n in (300, 512, 512, 7, 40, 512, 100, 129, 65):
                read(n, cache, graphs)
        assert graphs.take_counts()["replayed"]
        graphs.end()
        del graphs
gc.collect()
held = {use: pool.used_bytes() for use, pool in enumerate(Workspace._outliving)}
assert not any(held.values()), held
"""
)


@pytest.mark.parametrize(
    "name", ["tiny-qwen3:q4_k_m", "tiny-qwen35:q8_0", "tiny-llama:q4_k_m", "tiny-qwen35moe:q4_k_m"]
)
def test_nothing_that_kernels_keep_lies_where_graphs_write(name, tmp_path) -> None:
    """Counters made at the first run of 7 tokens would be written by every replay of the graph of 512 before it."""
    walked(KEPT, str(write_deep(tmp_path, *name.split(":"))))
