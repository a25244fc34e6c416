"""Published sizes that GPUs share, without a device: every launch of a few layers of a part fits its declaration."""

from __future__ import annotations

import pytest
from dry_walk import walked

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from dataclasses import replace
from sp.decode.base import generate
from sp.kernels import forced_path
from sp.models import Arithmetic, Shards, prefill, prefill_sparse
from sp.models.device.to_device import empty_matrix, empty_table
from sp.models.layer.shard_spec import ShardSpec
from sp.models.run.tree import TreeReader
from sp.models.run.tensor_parallel import ShardModel
from sp.models.synthetic.random_store import RandomStore
from sp.models.synthetic.shapes import find_shape
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.parallel.host import HostGroup
VOCAB, N, NEW, GPUS = 512, 300, 3, int(sys.argv[4])
shape = find_shape(sys.argv[2])
full = shape.config
layers = 5 if full.delta else 2  # of a hybrid two that attend
config = replace(full, vocab=VOCAB, kinds=full.kinds[-layers:], ffn=full.ffn[-layers:])


class Unfilled(RandomStore):
    def packed(self, name, size, data=None, *, pinned=False):
        return empty_matrix(name, self._formats[name], size)

    def matrix(self, name, size):
        if name == "token_embd.weight":
            return empty_table(name, self._formats[name], size)
        return super().matrix(name, size)

    def vector(self, name, size):
        return dry_device.empty(size)

    def table(self, name, size, rows=None):
        return dry_device.empty(size if rows is None else (len(rows), size[1]))


models, group = [], HostGroup(GPUS)
for rank in range(GPUS):
    store = Unfilled(config, replace(shape, config=config).plan(sys.argv[3]), shard=ShardSpec(rank, GPUS))
    models.append(ShardModel(store.config, store.weights(), "cuda", 0, (), Arithmetic(), ShardSpec(rank, GPUS), group))
shards, ids = Shards(group, config, tuple(models)), np.arange(N)


def work(model):
    cache = model.new_cache(N + NEW + 20)
    logits = prefill(model, ids, ids, cache, chunk=200)
    assert len(list(generate(model, logits, N, cache, limit=NEW))) == NEW
    reader = TreeReader(model, cache, most=16)
    assert reader.read_tree(ids[:9], ids[:9] - 1, ids[:9] + N + NEW).logits.shape == (9, VOCAB)
    reader.commit_path(ids[:3])
    cache.reset()
    prefill_sparse(model, ids, ids, cache, FlashPrefill(0.1))


for path in ("sm_90a", "portable"):
    with forced_path(path):
        shards.run(work)
"""


@pytest.mark.parametrize(
    ("shape", "file_type", "gpus"),
    [
        ("qwen3.6-27b", "q4_k_m", 2),
        ("qwen3.6-27b", "ud-q4_k_xl", 4),
        ("qwen3.6-35b-a3b", "ud-q4_k_xl", 2),
        ("llama-3.1-70b", "q4_k_m", 8),
        ("qwen2.5-32b", "q4_k_m", 4),
        ("qwen3-coder-next", "q4_k_m", 2),
        ("devstral-small-2", "q4_k_m", 4),
        ("qwen3-0.6b", "bf16", 4),
    ],
)
def test_every_launch_of_a_part_fits(shape, file_type, gpus) -> None:
    walked(WALK, shape, file_type, str(gpus))
