"""Importance that is recorded and repeated, without a device: the driver is given what launches would have given it."""

from __future__ import annotations

import pytest
from dry_walk import walked

FOLD = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
from collections import Counter
import cupy
import numpy as np
import dry_memory
from sp.kernels import repeats
from sp.kernels.scratch import Scratch
from sp.kernels.setting import setting
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.reduction import Reduction
from sp.quant import F16, Q4_0
from sp.scoring.attention import repeated_importance
from sp.scoring.attention.reduction import Fold, FoldByLayer
N, HEADS, LAYERS, BY_HEAD, FORMAT = 1000, 4, 6, bool(int(sys.argv[2])), {"f16": F16, "q4_0": Q4_0}[sys.argv[3]]
log, again, names = [], [], {}
dry_device.told.append(lambda entry, values: log.append((entry, [names.get(one, one) for one in values])))
repeat = repeats.Repeat.__call__
repeats.Repeat.__call__ = lambda self, addresses: (again.append(len(addresses)), repeat(self, addresses))
row = 128 // FORMAT.block_size * FORMAT.block_bytes
pages = [cupy.empty((8, 128, 2, row), np.uint8) for _ in range(2)]
tables = [cupy.arange(8, dtype=np.int32) for _ in range(LAYERS)]
queries = [cupy.empty((20, HEADS, 128), np.float16) for _ in range(2)]
def given(kind, tokens=N):
    fold = kind(Reduction(), BY_HEAD)
    log.clear(), again.clear(), names.clear()
    for i, one in enumerate(pages):
        names[one.data.ptr] = "keys", i
    for i, one in enumerate(tables):
        names[one.data.ptr] = "table", i
    for i, one in enumerate(queries):
        names[one[-8:].data.ptr] = "queries", i
    for layer in range(LAYERS):
        k = pages[layer % 2]
        at = PagedKV(k, k, tables[layer], tokens(layer) if callable(tokens) else tokens, FORMAT)
        fold.add_layer(queries[layer % 2][-8:], at, causal=True)
        names[fold.running.data.ptr] = "running"
    assert len({one.data.ptr for one in fold.layers}) == LAYERS, "heat maps that lie in one place"
    assert len({one.data.ptr for one in fold.heads}) == LAYERS * BY_HEAD
    where = [number for number in map(dry_memory.number_of, (one.data.ptr for one in fold.layers))]
    assert all(number is not None for number in where), "a heat map in memory that is gone"
    fold._importance.end()
    assert not Scratch._lending, "memory that nobody gets any more"
    return [(entry, [v for v in seen if not isinstance(v, int) or v < 1 << 32]) for entry, seen in log]
repeated, times = given(Fold), len(again)
with setting(repeats.watched, True):
    plain = given(Fold)
assert not again
assert repeated == plain, [both for both in zip(repeated, plain) if both[0] != both[1]][:2]
assert Counter(entry for entry, _ in plain)["importance_fold"] == LAYERS
given(FoldByLayer)
assert not again, "a layer by itself has no result so far"
repeated_importance.MOST_TOKENS = N - 1
given(Fold)
assert not again, "more tokens than are repeated"
print(times)
"""


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize(("fmt", "times"), [("f16", 4), ("q4_0", 0)])  # 4-bit keys are unpacked, beside all kernels
def test_repeats_are_the_launches_they_stand_for(by_head, fmt, times) -> None:
    assert int(walked(FOLD, str(int(by_head)), fmt)) == times
