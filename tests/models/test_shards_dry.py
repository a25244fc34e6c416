"""A model that several devices share, without a device: each launches what one would, and they meet twice a layer."""

from __future__ import annotations

import pytest
from dry_walk import walked
from tiny_models import VOCAB, write_tiny

from sp.models.synthetic.synthetic import write_synthetic
from sp.quant import Q8_0

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_nccl
GPUS, N, VOCAB = int(sys.argv[4]), 200, int(sys.argv[3])
dry_nccl.install(GPUS)
import cupy
import numpy as np
from sp.decode.base import generate
from sp.kernels import forced_path
from sp.models import load_model, prefill, prefill_layer_major
from sp.models.run.graph import PrefillGraphs
from sp.models.run.tree import TreeReader
from sp.models.shards.load_shards import load_shards
from sp.parallel.nccl import NcclGroup
told = []
shards = load_shards(sys.argv[2], NcclGroup(tuple(range(GPUS))), device="cuda", progress=told.append)
whole, ids = load_model(sys.argv[2], device="cuda"), np.arange(N) % VOCAB
layers, hidden = shards.config.layers, shards.config.hidden
assert sum(told) <= sum(model.nbytes for model in shards.models)
print(whole.nbytes, *(model.nbytes for model in shards.models))
def reads(model, n=N):
    cache = model.new_cache(n)
    return prefill(model, ids[:n], ids[:n] * 0 + np.arange(n), cache, chunk=100), cache
def goes_on(model):
    logits, cache = reads(model, 100)
    assert logits.shape == (VOCAB,) and logits.dtype == np.float32
    cache = model.new_cache(N)
    graphs = PrefillGraphs(model, cache)
    for way in ("eager", "captured", "replayed"):
        cache.reset()
        prefill(model, ids[:100], np.arange(100), cache, graphs=graphs)
        assert graphs.take_counts() == {way: 100} and cache.tokens == 100
    graphs.end()
    assert len(list(generate(model, logits, 100, cache, limit=4))) == 4
    reader = TreeReader(model, cache, (1,), most=8)
    tree = reader.read_tree(ids[:4], np.array([-1, 0, 0, 1]), 103 + np.array([0, 1, 1, 2]))
    assert tree.logits.shape == (4, VOCAB)
    reader.commit_path(np.array([0, 1]))
    cache.reset()
    return prefill_layer_major(model, ids, np.arange(N), cache, chunk=100, rows=40).shape
for path in ("sm_90a", "portable"):
    with forced_path(path):
        assert shards.run(goes_on) == [(VOCAB,)] * GPUS
        # A graph of 100 tokens, filled up, through all layers but one; and one of a step, replayed twice.
        graph = [128 * hidden] * 2 * (layers - 1) + [hidden] * 2 * layers
        assert list(dry_nccl.captured.values()) == [graph] * GPUS, dry_nccl.captured
        assert sorted(dry_nccl.replayed) == sorted([*range(GPUS)] * 4), dry_nccl.replayed
        dry_nccl.captured.clear(), dry_nccl.replayed.clear()
        dry_nccl.launches.clear(), dry_nccl.reduced.clear()
        shards.run(reads)
        # Of the last layer's first chunk nothing is put out, of its second one token.
        meetings = [100 * hidden] * 4 * (layers - 1) + [hidden] * 2
        assert list(dry_nccl.reduced.values()) == [meetings] * GPUS, dry_nccl.reduced
        counts = [dict(count) for _, count in sorted(dry_nccl.launches.items())]
        dry_nccl.launches.clear()
        reads(whole)
        one = dry_nccl.launches[0]
        assert all(count == counts[0] for count in counts), counts
        assert counts[0] == one or shards.config.experts, (counts[0], one)
assert not dry_nccl.aborted and dry_nccl.opened == [GPUS]
"""
SIZES = {
    "block_count": 6,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
    "ssm.group_count": 4,
    "ssm.time_step_rank": 12,
    "ssm.inner_size": 768,
    "ssm.state_size": 64,
}


@pytest.mark.parametrize("shape", ["tiny-qwen3moe", "tiny-qwen35moe"])
def test_every_launch_of_mixtures_fits(shape, tmp_path) -> None:
    """Their experts are too narrow then for the kernel of few tokens, so that others are launched than on one GPU."""
    path = write_synthetic(tmp_path / "m.gguf", shape, "q8_0")
    whole, *parts = map(int, walked(WALK, str(path), "2048", "2").split())
    assert whole < sum(parts) < 1.3 * whole


@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_every_gpu_launches_what_one_gpu_would(arch, gpus, tmp_path) -> None:
    sizes = {name: size for name, size in SIZES.items() if arch == "qwen35" or not name.startswith("ssm")}
    path = write_tiny(tmp_path / "m.gguf", arch, fmt=Q8_0, **sizes)
    whole, *parts = map(int, walked(WALK, str(path), str(VOCAB), str(gpus)).split())
    table, tile = (rows * SIZES["embedding_length"] * 34 // 32 for rows in (VOCAB, 64))
    rounded = 9 * tile + 20_000  # head and gates of recurrent layers, held in tiles of 64 rows, and norms
    assert whole <= sum(parts) <= whole + (gpus - 1) * (table + rounded)
    assert max(parts) - min(parts) < 1000
