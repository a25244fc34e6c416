"""Turns that are recorded and repeated, without a device: the driver is given what launches would have given it."""

from __future__ import annotations

import pytest
from dry_walk import walked
from tiny_models import VOCAB, write_tiny

from sp.quant import BF16, Q4_K, Q8_0

WALK = """
import sys
sys.path[:0] = sys.argv[1], sys.argv[1] + "/.."
import dry_device, dry_nccl
from repeated_parts import repeated_parts
GPUS, N, VOCAB, DEPTH = int(sys.argv[7]), int(sys.argv[4]), int(sys.argv[3]), 8
STRIPES = 2 * GPUS if GPUS > 1 else 1
dry_device.H200["major"] = int(sys.argv[5])
dry_nccl.install(GPUS)
dry_nccl.copied[0] = False  # zeros to where zeros are, for no kernel runs
import threading
from bisect import bisect
from collections import defaultdict
from dataclasses import replace
import cupy
import dry_memory
from dry_memory import number_of
import numpy as np
import pytest
from sp.kernels import current_path, launch_replay
from sp.kernels.workspace import Workspace
from sp.kernels.setting import setting
from sp.models import Hooks, ContextParallel, SparseAttention, dense_attention, load_model
from sp.models.cache.context_parallel_cache import ContextParallelCache
from sp.models.run import replay as repeated_layers
from sp.models.run.context_parallel import last_chunk_pages_less
from sp.models.run.context_parallel import read_context_parallel
from sp.models.run.replay import read_with_replay
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.parallel.nccl import NcclGroup
from sp.parallel.nccl_rank import NcclRank
from sp.quant import Math
models = []
for device in range(GPUS):
    with cupy.cuda.Device(device):
        models.append(load_model(sys.argv[2], device="cuda", precision=sys.argv[6]))
if N > STRIPES * 2049 and current_path() == "sm_90a":  # a stripe is long enough
    for model in models:
        model.arithmetic = replace(model.arithmetic, attention=Math.INT8)
of_weights = []
for gpu, model in enumerate(models):
    for layer, block in enumerate(model.weights.blocks):
        mixer, ffn = block.mixer, block.ffn
        matrices = mixer.q, mixer.k, mixer.v, mixer.out, ffn.gate, ffn.up, ffn.down
        vectors = block.attn_norm, block.ffn_norm, mixer.norms.q, mixer.norms.k
        for place, one in enumerate((*(w.data for w in matrices), *vectors)):
            of_weights.append((one.data.ptr, one.data.ptr + one.nbytes, (gpu, layer, place)))
        for rows in {id(w.kept.rows): w.kept.rows for w in matrices if w.kept}.values():
            for one, name in ((rows.codes, "codes"), (rows.scales, "scales")):
                of_weights.append((one.data.ptr, one.data.ptr + one.nbytes, (gpu, layer, rows.width, name)))
log, again, lost, recorded, inside, placed = defaultdict(list), [], [], {}, threading.local(), {}
of_weights.sort()
begins = [start for start, _, _ in of_weights]
def named(address):
    start, end, name = of_weights[bisect(begins, address) - 1]
    return (*name, address - start) if start <= address < end else placed.get(address, "array")
def placing(kind, *lists):
    init = kind.__init__
    def once(self, *given, **more):
        init(self, *given, **more)
        every = [(name, i, one) for name in lists for i, one in enumerate(getattr(self, name))]
        for name, i, one in every:
            placed.update((part.data.ptr, (name, i)) for part in (one if isinstance(one, list) else [one]))
    kind.__init__ = once
placing(ContextParallelCache, "_own", "_all")
placing(repeated_layers.ReplayedLayers, "_query_buffers")
def tell(entry, values):
    arrays = [value for value in values if value > 1 << 32]
    if launch_replay._recorder.get() is not None:
        recorded.update((value, number_of(value)) for value in arrays)
    if getattr(inside, "repeat", False):
        lost.extend((entry, value) for value in arrays if recorded.get(value, number_of(value)) != number_of(value))
    seen = [named(value) if value in arrays else value for value in values]
    log[threading.current_thread().name].append((entry, seen))
dry_device.told.append(tell)
repeat = launch_replay.LaunchReplay.__call__
def counted(self, addresses):
    again.append(len(addresses))
    inside.repeat = True
    repeat(self, addresses)
    inside.repeat = False
launch_replay.LaunchReplay.__call__ = counted
waits, drain = [], NcclRank._drain
def drained(self, left):
    waits.append(left)
    return drain(self, left)
NcclRank._drain = drained
ids = np.arange(N) % VOCAB
monkeypatch = pytest.MonkeyPatch()
group = NcclGroup(tuple(range(GPUS))) if GPUS > 1 else None
def read_on(ids, where, watch, **how):
    if group is None:
        return read_with_replay(models[0], ids, where, Hooks(watch), **how)
    return read_context_parallel(group, models, ids, where, Hooks(watch, replay_key="looks at shapes"), **how)
def read(attend):
    log.clear(), again.clear(), recorded.clear(), placed.clear()  # what another reading recorded is gone
    queries, watch = [], lambda layer, q, cache: queries.append((layer, q.shape))
    read_on(ids, np.arange(N), watch, attend=attend, rows=8, depth=DEPTH)
    sparse = isinstance(attend, SparseAttention)
    assert not dry_memory.lost and not Workspace._outliving, "memory lent to turns that nobody gets any more"
    for one in (one for reads in attend.reads.values() for one in reads) if sparse else ():
        assert isinstance(one.counts, np.ndarray) or number_of(one.counts.data.ptr) is not None, "memory that is gone"
    listed = sparse and {layer: len(reads) for layer, reads in attend.reads.items()}
    return {who: [one for one in calls if one[0] != "zeros"] for who, calls in log.items()}, queries, listed
for made in (lambda: dense_attention, lambda: SparseAttention(FlashPrefill(0.1))):
    waits.clear(), read(made())
    first = waits.count(0)
    waits.clear()
    repeated = read(made())
    if group is not None:  # a gpu waits for its device at the end alone, not for memory that a pool has
        assert 2 * GPUS <= waits.count(0) <= 3 * GPUS < first, (waits.count(0), first)
    assert not lost, f"memory that others may have by now: {lost[:3]}"
    less = last_chunk_pages_less(models[0].config, made(), N)
    expected = repeated_parts(N, GPUS, DEPTH, sys.argv[6] == "int8", less)
    assert len(again) == expected, (len(again), expected)
    filled = sum(one[0] == "zeros" for calls in log.values() for one in calls)
    assert filled >= STRIPES * (DEPTH - 2) * (current_path() == "sm_90a"), filled
    with monkeypatch.context() as patched:
        patched.setattr(repeated_layers, "WORTH", 1000)  # nothing comes so often
        plain = read(made())
    assert not again
    assert repeated[1:] == plain[1:], (repeated[1:], plain[1:])
    for who, calls in plain[0].items():
        assert calls == repeated[0][who], [both for both in zip(calls, repeated[0][who]) if both[0] != both[1]][:2]
read(lambda cache, layer, q, gate, rule: dense_attention(cache, layer, q, gate, rule))
assert not again, "attention of somebody else's, which may do anything"
with setting(launch_replay.replay_disabled, True):
    read(SparseAttention(FlashPrefill(0.1)))
assert not again, "launches that somebody looks at when they are made"
for which in ("_own", "_all", "_query_buffers"):
    for i in range(2):
        assert any((which, i) in seen for calls in plain[0].values() for _, seen in calls), (which, i)
print(sum(map(len, plain[0].values())), *{name for calls in plain[0].values() for name, _ in calls})
"""


@pytest.mark.parametrize(
    ("tokens", "major", "precision", "gpus", "formats"),
    [
        # A length and a machine have kernels of their own in either precision; each format comes with all of these.
        (2100, 9, "bf16", 3, (BF16, Q8_0, Q4_K)),
        (12600, 9, "bf16", 3, (Q8_0,)),
        (2100, 8, "bf16", 3, (BF16, Q4_K)),
        (12600, 9, "int8", 3, (BF16, Q8_0, Q4_K)),
        (12600, 8, "int8", 3, (BF16, Q8_0)),
        (300, 9, "bf16", 1, (Q8_0,)),
        (2100, 8, "bf16", 1, (Q4_K,)),
        (2100, 9, "int8", 1, (BF16, Q4_K)),
        (17000, 9, "int8", 1, (BF16,)),  # in two chunks
    ],
)
def test_repeats_are_the_launches_they_stand_for(tokens, major, precision, gpus, formats, tmp_path) -> None:
    for fmt in formats:
        compared(fmt, tokens, major, precision, gpus, tmp_path / f"{fmt.name}.gguf")


def compared(fmt, tokens, major, precision, gpus, path) -> None:
    """A prompt read with turns repeated, and with all of them planned."""
    sizes = {"embedding_length": 256, "feed_forward_length": 256, "block_count": 8, "context_length": tokens}
    sizes |= {"attention.key_length": 128, "attention.value_length": 128}
    write_tiny(path, "qwen3", fmt=fmt, **sizes)
    printed = walked(WALK, str(path), str(VOCAB), str(tokens), str(major), precision, str(gpus)).split()
    assert int(printed[0]) > (80 if gpus == 1 else 300)
    assert ("attention_bytes" in printed) == (tokens > 2049 * (1 if gpus == 1 else 2 * gpus) and major == 9)
    assert ("gemm_sm90" in printed) == (major == 9)  # of the first two layers in int8, too
    assert ("gemm_bytes_sm90" in printed) == (major == 9 and precision == "int8")
    assert ("loud_weight" in printed) == (precision == "int8")
