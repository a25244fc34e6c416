"""A family of windows, norms behind the halves, GELU and two RoPEs on the device, against float64."""

from __future__ import annotations

from functools import cache

import cupy as cp
import numpy as np
import pytest
import windows_family as gull
from compare import nmse

from sp.models import decode_step, load_model, prefill, prefill_layer_major
from sp.models.run.graph import PrefillGraphs
from sp.models.run.tree import TreeReader
from sp.ops.activations import geglu
from sp.quant import BF16, Q8_0

BOUND = 1e-3
BOUNDS = {
    "f16": BOUND,
    "q8_0": 5e-3,
    "5bit": 0.1,
    "4bit": 0.1,
    "q4_0": 0.2,
}  # on random weights q4_0 costs the CPU 0.135 too
N = 300


@cache
def prompt():
    rng = np.random.default_rng(4)
    return rng.integers(0, gull.VOCAB, N), np.cumsum(rng.integers(1, 5, N))


@cache
def expected(fmt):
    """Logits of the numbers that the file holds."""
    held = {
        name: value if value.ndim == 1 else fmt.decode(fmt.encode(value)).reshape(value.shape)
        for name, value in gull.tensors().items()
    }
    return gull.logits(held, *prompt())


@pytest.fixture(scope="module", params=[BF16, Q8_0], ids=lambda fmt: fmt.name)
def case(request, tmp_path_factory):
    path = gull.write(tmp_path_factory.mktemp("gull") / "gull.gguf", gull.tensors(), request.param)
    return load_model(path, device="cuda"), expected(request.param)


@pytest.mark.parametrize("rows", [1, 3, 700])
def test_geglu(rows) -> None:
    rng = np.random.default_rng(rows)
    given = [rng.standard_normal((rows, 192)).astype(np.float32) * 3 for _ in range(2)]
    given[0][0, 0] = 1e4  # far out, both ways
    given[0][0, 1] = -1e4
    bits = [((one.view(np.uint32) + 0x8000) >> 16).astype(np.uint16) for one in given]
    exact = [(one.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for one in bits]
    with np.errstate(over="ignore"):
        gate = exact[0] / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (exact[0] + 0.044715 * exact[0] ** 3)))
    found = (geglu(*map(cp.asarray, bits)).get().astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(found, gate * exact[1], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("kv", list(BOUNDS))
@pytest.mark.parametrize("chunk", [7, 64, 300])
@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
def test_prefill_then_decode(walk, chunk, kv, case, path) -> None:
    model, want = case
    ids, positions = prompt()
    store, bound = model.new_cache(N, kv), BOUNDS[kv]
    assert nmse(walk(model, ids[:-3], positions[:-3], store, chunk=chunk), want[-4]) < bound
    for t in range(N - 3, N):
        assert nmse(decode_step(model, int(ids[t]), int(positions[t]), store), want[t]) < bound


def test_a_tree_and_graphs(case, path) -> None:
    model, want = case
    ids, positions = prompt()
    store = model.new_cache(N)
    prefill(model, ids[:-16], positions[:-16], store)
    found = TreeReader(model, store, most=16).read_tree(ids[-16:], np.arange(16) - 1, positions[-16:])
    assert nmse(found.logits, want[-16:]) < BOUND
    # A second guess beside the last eight: siblings push nothing out of each other's windows.
    store = model.new_cache(N + 20)
    prefill(model, ids[:-16], positions[:-16], store)
    parents = np.concatenate([np.arange(16) - 1, [7], 15 + np.arange(1, 8)])
    last = np.concatenate([ids[-16:], ids[-8:]]), np.concatenate([positions[-16:], positions[-8:]])
    found = TreeReader(model, store, most=24).read_tree(last[0], parents, last[1])
    assert nmse(found.logits[:16], want[-16:]) < BOUND
    assert nmse(found.logits[16:], want[-8:]) < BOUND
    store = model.new_cache(N + 20)
    graphs = PrefillGraphs(model, store)
    for _ in range(3):  # launch by launch, captured, replayed
        store.reset()
        assert nmse(prefill(model, ids[:-3], positions[:-3], store, graphs=graphs), want[-4]) < BOUND
    assert graphs.refused is None
    assert graphs.take_counts()["replayed"] == N - 3
    graphs.end()
