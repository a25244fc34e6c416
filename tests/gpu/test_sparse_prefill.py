"""A target that reads sparsely on the device: as densely at alpha 0, as in NumPy above, over every cache, in chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from compare import nmse
from device_models import case

from sp.models import Model, decode_step, prefill, prefill_sparse
from sp.ops.sparse.block_selector import Streaming
from sp.ops.sparse.flashprefill import FlashPrefill

N = 2500
CACHES = [("f16", False), ("f16", True), ("q4_0", False), ("q4_0", True)]


def ids(name: str) -> np.ndarray:
    """Tokens; longer than what the case has, so that several query blocks choose."""
    given = case(name).ids
    return np.tile(given, -(-N // len(given)))[:N]


@pytest.mark.parametrize("name", ["target", "tiny-qwen35:q8_0", "tiny-llama:bf16", "tiny-qwen2:q8_0"])
@pytest.mark.parametrize(("kv", "rotate"), CACHES)
@pytest.mark.parametrize("chunk", [None, 1000])
def test_alpha_zero_is_a_dense_prefill(name, kv, rotate, chunk, path) -> None:
    model, where = case(name).gpu, np.arange(N)
    want = prefill(model, ids(name), where, model.new_cache(N, kv, rotate=rotate)).get()
    cache = model.new_cache(N + 1, kv, rotate=rotate)
    got, densities = prefill_sparse(model, ids(name), where, cache, FlashPrefill(0.0), chunk=chunk)
    assert set(densities) <= {1.0}
    assert nmse(got, want) < (1e-2 if kv == "q4_0" else 1e-3)
    assert np.isfinite(decode_step(model, 5, N, cache).get()).all()


def read(model: Model, options: FlashPrefill) -> tuple[np.ndarray, tuple[float, ...]]:
    return prefill_sparse(model, ids("target"), np.arange(N), model.new_cache(N), options, chunk=1024)


@cache
def on_host(options: FlashPrefill) -> tuple[np.ndarray, tuple[float, ...]]:
    return read(case("target").cpu, options)


@pytest.mark.parametrize("options", [FlashPrefill(0.2), FlashPrefill(0.2, share="group", visibility="first")])
@pytest.mark.parametrize("correct", [False, True])
def test_sparse_is_that_of_numpy(options, correct, path) -> None:
    options = replace(options, mean_correction=correct)
    (got, some), (want, same) = read(case("target").gpu, options), on_host(options)
    print(f"densities {some} and {same}, nmse {nmse(got, want):.2e}")
    assert min(some) < 1  # some layers of the pair look at all blocks
    np.testing.assert_allclose(some, same, atol=0.03)
    assert nmse(got, want) < 1e-2
    assert int(got.argmax()) == int(want.argmax())


def test_streaming_reads_what_it_says() -> None:
    model, where = case("target").gpu, np.arange(N)
    _, densities = prefill_sparse(model, ids("target"), where, model.new_cache(N), Streaming(1, 2))
    blocks = -(-N // 128)
    want = sum(min(i, 3) for i in range(1, blocks + 1)) / (blocks * (blocks + 1) / 2)
    np.testing.assert_allclose(densities, want)
