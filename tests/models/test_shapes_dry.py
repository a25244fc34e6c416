"""Published sizes on the device path without a device: every launch of a few layers of each fits its declaration."""

from __future__ import annotations

import pytest
from dry_walk import walked

from sp.models.synthetic.shapes import find_shape, list_shapes

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from dataclasses import replace
from sp.decode.base import greedy
from sp.kernels import forced_path
from sp.models import prefill, prefill_layer_major, prefill_sparse
from sp.models.device.to_device import empty_matrix, empty_table
from sp.models.network.model import Model
from sp.models.run.tree import TreeReader
from sp.models.synthetic.shapes import find_shape
from sp.models.network.weights import ModelWeights
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.scoring import SCORERS, ScoreRequest

VOCAB, N, NEW = 512, 300, 3
shape = find_shape(sys.argv[2])
full = shape.config
# Of a hybrid two that attend, and one without a window that is not the last.
layers = 5 if full.delta else 7 if full.windows else 2
cut = {name: getattr(full, name)[-layers:] for name in ("kinds", "ffn", "windows")}
shape = replace(shape, config=replace(full, vocab=VOCAB, **cut))


class Unfilled:
    def __init__(self, plan):
        self.config, self.formats = shape.config, {name: fmt for name, _, fmt in plan}

    def __contains__(self, name):
        return name in self.formats

    def matrix(self, name, size):
        make = empty_table if name == "token_embd.weight" else empty_matrix
        return make(name, self.formats[name], size)

    def stack(self, name, size):
        return empty_matrix(name, self.formats[name], (size[0] * size[1], size[2]))

    def picked(self, name, size, rows):
        return [empty_matrix(name, self.formats[name], (len(some), size[1])) for some in rows]

    def vector(self, name, size):
        return dry_device.empty(size)

    def table(self, name, size, rows=None):
        return dry_device.empty(size if rows is None else (len(rows), size[1]))


store = Unfilled(shape.plan(sys.argv[3]))
weights = ModelWeights.build(store)
if shape.tied:
    fmt = store.formats["token_embd.weight"]
    weights = replace(weights, output=empty_matrix("output.weight", fmt, weights.embed.shape))
model, ids = Model(shape.config, weights, "cuda", 0), np.arange(N)
none = np.zeros(N, bool)
narrow = all(sizes.head_dim <= 256 for sizes in full.head_sizes)  # or sparse attention refuses heads by their size
for path in ("sm_90a", "portable"):
    with forced_path(path):
        for kv, rotate in (("f16", False), ("q4_0", True), ("5bit", None))[: int(sys.argv[4])]:
            cache = model.new_cache(N + 20, kv, rotate=rotate)
            logits = prefill(model, ids, ids, cache, chunk=250)
            assert logits.shape == (VOCAB,)
            assert len(greedy(model, logits, N, cache, eos_ids=frozenset(), max_new_tokens=NEW)) == NEW
            reader = TreeReader(model, cache, most=16)
            assert len(reader.read_tree(ids[:16], ids[:16] - 1, N + NEW + ids[:16]).choices) == 16
            reader.commit_path(ids[:3])
            cache.reset()
            prefill_layer_major(model, ids, ids, cache)
            cache.reset()
            # The means of blocks that are left out know neither sinks nor a bound of scores.
            plain = weights.blocks[0].spec.sinks is None and full.attention_softcap is None
            if narrow:
                prefill_sparse(model, ids, ids, cache, FlashPrefill(0.1, share="group", mean_correction=plain))
        for options in ({}, {"sparse": "alpha:0.1"}, {"rotary": "none"}):
            if "sparse" in options and not narrow:
                continue
            found = SCORERS.build("tail", options).score(ScoreRequest(model, ids, ids, none, none))
            assert found.scores.shape == (N,)
print(dry_device.launches["attention_sm90"], dry_device.launches["attention_portable"])
"""


PUBLISHED = [name for name in list_shapes() if not name.startswith("tiny-")]
DRAFTERS = [name for name in PUBLISHED if find_shape(name).tied]


CASES = [
    *((name, "q4_k_m") for name in PUBLISHED),
    *((name, "bf16") for name in DRAFTERS),
    ("gpt-oss-20b", "mxfp4_moe"),
]


@pytest.mark.parametrize(("shape", "file_type"), CASES)
def test_every_launch_fits(shape, file_type) -> None:
    kinds = 3 if file_type == "q4_k_m" else 1  # weights of another format meet no other keys and values
    hopper, portable = map(int, walked(WALK, shape, file_type, str(kinds)).split())
    assert hopper > 0 < portable
