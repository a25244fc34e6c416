"""Graphs of what GPUs do together, without a device: one that cannot be captured, and one that never ends."""

from __future__ import annotations

import pytest
from dry_walk import walked
from tiny_models import write_tiny

from sp.quant import Q8_0

START = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import dry_nccl
dry_nccl.install(2)
import numpy as np
from sp.decode import SamplingDecoder
from sp.decode.base import GraphDecoder
from sp.errors import DeviceError
from sp.models import load_shards, prefill
from sp.models.run.graph import PrefillGraphs
from sp.parallel.nccl import NcclGroup
N, NEW = 100, 6
group = NcclGroup((0, 1), wait_seconds=0.3, leave_seconds=1.0)
shards, ids = load_shards(sys.argv[2], group, device="cuda"), np.arange(N) % 50

def answer(model, chooser=None):
    cache = model.new_cache(N + NEW)
    logits, decoder = prefill(model, ids, np.arange(N), cache), GraphDecoder(model, cache, NEW)
    try:
        tokens = list(decoder.tokens(logits, N, NEW, chooser))
        assert cache.tokens == N + NEW - 1, cache.tokens
        return len(tokens), decoder.refused
    finally:
        decoder.end()
"""
UNABLE = (
    START
    + """
def read(model):
    cache = model.new_cache(N)
    graphs = PrefillGraphs(model, cache)
    for _ in range(3):
        cache.reset()
        prefill(model, ids, np.arange(N), cache, graphs=graphs)
        assert cache.tokens == N and graphs.take_counts() == {"eager": N}
    graphs.end()
    return graphs.refused

dry_nccl.unable.add(1)
for chooser in (lambda: None, lambda: SamplingDecoder().chooser(1)):
    (one, first), (other, second) = shards.run(lambda model: answer(model, chooser()))
    assert one == other == NEW and not dry_nccl.replayed
    print(first, second, sep="|")
print(*shards.run(read), sep="|")
dry_nccl.unable.clear()
dry_nccl.broken.add(0)
dry_nccl.captured.clear()
(one, first), (other, second) = shards.run(answer)
assert one == other == NEW and not dry_nccl.replayed
print(first, second, sep="|")
dry_nccl.broken.clear()
assert shards.run(answer) == [(NEW, None)] * 2
assert len(dry_nccl.replayed) == 2 * (NEW - 2) and not dry_nccl.aborted
"""
)
HANGS = (
    START
    + """
assert shards.run(answer) == [(NEW, None)] * 2
dry_nccl.replayed.clear()
dry_nccl.stalled.add(1)
start = time.monotonic()
try:
    shards.run(answer)
except DeviceError as error:
    print(error)
assert time.monotonic() - start < 2 and threading.active_count() == 1
assert sorted(dry_nccl.aborted) == [0, 1], dry_nccl.aborted
dry_nccl.stalled.clear()
assert shards.run(answer) == [(NEW, None)] * 2
"""
)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    sizes = {"embedding_length": 256, "feed_forward_length": 512, "attention__head_count": 8}
    file = tmp_path_factory.mktemp("captured") / "m.gguf"
    return str(write_tiny(file, "qwen3", fmt=Q8_0, attention__head_count_kv=4, **sizes))


def test_where_one_gpu_cannot_capture_all_go_on_launch_by_launch(path) -> None:
    why = "RuntimeError: operation not permitted when stream is capturing"
    other = "DeviceError: another GPU could not capture the work that all of them do"
    *told, last = walked(UNABLE, path).splitlines()
    assert told == [f"{other}|{why}"] * 3
    assert last == f"NcclError: NCCL_ERROR_UNHANDLED_CUDA_ERROR|{other}"  # in the middle of it


def test_a_replay_that_hangs_ends_all(path) -> None:
    assert (
        walked(HANGS, path).strip().endswith("queued work did not finish within 0.3 s; check nvidia-smi and run again")
    )


KEPT = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_nccl
dry_nccl.install(2)
import numpy as np
from sp.models import load_shards, prefill
from sp.models.run.graph import PrefillGraphs
from sp.parallel.nccl import NcclGroup
from sp.session import embedded
shards, ids = load_shards(embedded("target"), NcclGroup((0, 1)), device="cuda", precision="int8"), np.arange(1024)

def read(model):
    cache = model.new_cache(2048)
    graphs = PrefillGraphs(model, cache)
    for way in ("eager", "captured", "replayed"):
        cache.reset()
        prefill(model, ids, ids, cache, graphs=graphs)
        assert graphs.take_counts() == {way: 1024}
    graphs.end()
    return model.arithmetic.weights, model.arithmetic.kept > 0

dry_nccl.launches.clear()
assert shards.run(read) == [(40, True)] * 2
assert all(counts["gemm_bytes_sm90"] > 0 and not counts["unpack_tiles"] for counts in dry_nccl.launches.values())
assert len(dry_nccl.launches) == 2 and {len(counts) for counts in dry_nccl.captured.values()} == {2 * 9}
"""


IN_PARTS = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_nccl
dry_nccl.install(2)
import numpy as np
from sp.models import load_shards, prefill
from sp.models.run.graph import PrefillGraphs
from sp.parallel.nccl import NcclGroup
N = 2300
shards, ids = load_shards(sys.argv[2], NcclGroup((0, 1)), device="cuda"), np.arange(N) % 50
hidden, layers = shards.config.hidden, shards.config.layers

def read(model):
    cache = model.new_cache(2 * N + 100)
    graphs = PrefillGraphs(model, cache)
    for way in ("eager", "captured", "replayed"):
        cache.reset()
        prefill(model, ids, np.arange(N), cache, graphs=graphs)
        assert graphs.take_counts() == {way: N} and cache.tokens == N, graphs.refused
        assert int(cache.stored(layers - 1).total[0]) in (0, N)
    graphs.end()

shards.run(read)
for rank in (0, 1):
    assert dry_nccl.captured[rank] == [1152 * hidden] * 4 * (layers - 1), dry_nccl.captured[rank]
    assert dry_nccl.reduced[rank][0] == 2304 * hidden  # by itself, in one part
assert dry_nccl.replayed.count(0) == dry_nccl.replayed.count(1) == 2
"""


def test_a_long_run_in_a_graph_goes_in_two_parts(path) -> None:
    walked(IN_PARTS, path)


def test_weights_that_stay_rounded_are_read_on_each_gpu() -> None:
    walked(KEPT)
