"""A family from outside the package on the device: biases, no norms of heads, interleaved RoPE, against float64."""

from __future__ import annotations

from functools import cache

import cupy as cp
import numpy as np
import pytest
from compare import nmse
from outside_family import VOCAB, tern_logits, tern_tensors, write_tern

from sp.decode.base import GraphDecoder, greedy
from sp.models import Hooks, decode_step, load_model, prefill, prefill_layer_major
from sp.models.run.tree import TreeReader
from sp.ops.add_bias import add_bias
from sp.quant import BF16, F32, Q8_0

BOUND = 1e-3
N = 300  # no whole number of pages


@cache
def prompt():
    rng = np.random.default_rng(4)
    return rng.integers(0, VOCAB, N), np.cumsum(rng.integers(1, 5, N))


@cache
def expected(fmt):
    """Logits of the numbers that the file holds."""
    tensors = tern_tensors()
    stored = F32 if fmt is F32 else fmt
    held = {
        name: value if value.ndim == 1 else stored.decode(stored.encode(value)).reshape(value.shape)
        for name, value in tensors.items()
    }
    return tern_logits(held, *prompt())


@pytest.fixture(scope="module", params=[BF16, Q8_0], ids=lambda fmt: fmt.name)
def case(request, tmp_path_factory):
    path = write_tern(tmp_path_factory.mktemp("tern") / "tern.gguf", tern_tensors(), request.param)
    return load_model(path, device="cuda"), expected(request.param)


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 128), (700, 1032), (70000, 64)])
def test_add_bias(rows, width) -> None:
    rng = np.random.default_rng(rows)
    x, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, width), (width,)))
    want = (x + bias).view(np.uint32)
    want = ((want + 0x7FFF + (want >> 16 & 1)) >> 16).astype(np.uint16)
    x, bias = cp.asarray(x), cp.asarray(bias)
    few, narrow = max(1, rows // 3), width // 2 // 8 * 8 or 8
    others = cp.ascontiguousarray(x[:few]), cp.ascontiguousarray(x[:, :narrow])
    for found in (add_bias([x], [bias]), add_bias([x, *others], [bias, bias, bias[:narrow]])):
        for got, part in zip(found, (want, want[:few], want[:, :narrow]), strict=False):
            np.testing.assert_array_equal(got.get(), part)


@pytest.mark.parametrize("chunk", [7, 64, 300])
@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
def test_prefill_then_decode(walk, chunk, case, path) -> None:
    model, want = case
    ids, positions = prompt()
    store = model.new_cache(N)
    assert nmse(walk(model, ids[:-3], positions[:-3], store, chunk=chunk), want[-4]) < BOUND
    for t in range(N - 3, N):
        assert nmse(decode_step(model, int(ids[t]), int(positions[t]), store), want[t]) < BOUND


def test_a_tap_and_a_tree(case, path) -> None:
    model, want = case
    ids, positions = prompt()
    store, seen = model.new_cache(N), []
    prefill(model, ids[:-16], positions[:-16], store, hooks=Hooks(lambda *call: seen.append(call[0])), rows=20)
    assert set(seen) == set(model.config.attention_layers)
    found = TreeReader(model, store, most=16).read_tree(ids[-16:], np.arange(16) - 1, positions[-16:])
    assert nmse(found.logits, want[-16:]) < BOUND


def test_a_graph_decodes_what_launches_decode(case) -> None:
    model, _ = case
    ids, positions = prompt()
    found = []
    for decoder in ("greedy", "graph"):
        store = model.new_cache(N + 10)
        logits = prefill(model, ids, positions, store)
        start = int(positions[-1]) + 1
        if decoder == "greedy":
            found.append(greedy(model, logits, start, store, eos_ids=frozenset(), max_new_tokens=8))
        else:
            found.append(list(GraphDecoder(model, store, 8).tokens(logits, start, 8)))
    assert list(found[0]) == found[1]
