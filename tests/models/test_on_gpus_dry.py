"""A prompt read on several devices without a device: every launch fits its declaration, and each GPU has its share."""

from __future__ import annotations

import pytest
from dry_walk import walked
from tiny_models import VOCAB, write_tiny

from sp.quant import Q8_0

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_nccl
GPUS, N, VOCAB = 4, 2100, int(sys.argv[3])
dry_nccl.install(GPUS)
import cupy
import numpy as np
from sp.kernels import forced_path
from sp.models import Hooks, ContextParallel, SparseAttention, dense_attention, load_model
from sp.models.run.context_parallel import read_context_parallel
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.parallel.nccl import NcclGroup
from sp.scoring import SCORERS, ScoreRequest
models = []
for device in range(GPUS):
    with cupy.cuda.Device(device):
        models.append(load_model(sys.argv[2], device="cuda"))
group, ids, seen, told = NcclGroup(tuple(range(GPUS))), np.arange(N) % VOCAB, [], []
def watch(layer, q, cache):
    at = cache.stored(layer)
    seen.append((layer, len(q), at.tokens, len(at.table)))
for path in ("sm_90a", "portable"):
    with forced_path(path):
        for kv, rotate in (("f16", False), ("q4_0", True), ("5bit", None)):
            # Where launches may be repeated, the last layer is asked for as many queries as the others.
            last = 8 if models[0].config.gated else 308
            for attend in (dense_attention, SparseAttention(FlashPrefill(0.1))):
                seen.clear(), told.clear(), dry_nccl.launches.clear()
                read_context_parallel(
                    group, models, ids, np.arange(N), Hooks(watch, progress=told.append), attend=attend, rows=8, kv=kv,
                    rotate=rotate,
                )
                assert seen == [(0, 308, N, 17), (1, 308, N, 17), (2, last, N, 17)], seen
                assert sum(told) == 3 * N, told
                mean = "block_means", "block_select_sm90" if path == "sm_90a" else "block_select"
                for gpu, count in sorted(dry_nccl.launches.items()):
                    attended = count["attention_sm90"] + count["attention_portable"]
                    assert attended == 2 * 2, count
                    assert [count[name] > 0 for name in mean] == [attend is not dense_attention] * 2, count
                    assert count["gather_rows"] == 2, count
                    assert count["attention_heads"] == (4 if last == 8 else 6), count  # a stripe at once
                    assert count["advance_counts"] == 0, count  # only the host counts
for gpu, count in sorted(dry_nccl.launches.items()):
    print(gpu, sum(count.values()))
scorer = SCORERS.build("tail", {"sparse": "alpha:0.1"})
nothing = np.zeros(N, bool)
asked = ScoreRequest(models[0], ids, np.arange(N), nothing, nothing, gpus=ContextParallel(group, models))
dry_nccl.launches.clear()
found = scorer.score(asked)
assert found.scores.shape == (N,) and len(found.densities) == 2
assert [count["importance_scores"] for _, count in sorted(dry_nccl.launches.items())] == [3, 0, 0, 0]
assert not dry_nccl.aborted and dry_nccl.opened == [GPUS]
"""


@pytest.mark.parametrize("arch", ["qwen3", "gated"])
def test_every_gpu_launches_its_share(arch, tmp_path) -> None:
    sizes = {"embedding_length": 256, "feed_forward_length": 256, "block_count": 3}
    if arch == "gated":
        sizes |= {"full_attention_interval": 1}
    path = write_tiny(tmp_path / "m.gguf", "qwen35" if arch == "gated" else arch, fmt=Q8_0, **sizes)
    printed = [line.split() for line in walked(WALK, str(path), str(VOCAB)).splitlines()]
    assert [gpu for gpu, _ in printed] == ["0", "1", "2", "3"]
    launches = [int(count) for _, count in printed]
    assert launches[1] == launches[2] == launches[3] <= launches[0] <= launches[1] + 3
