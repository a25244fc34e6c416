"""delta_mixer on the device against the NumPy twin in float64, on the same bf16 inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from captured import capture
from compare import nmse, to_float64
from delta_layers import DECAYS, LARGE, PAIR, SMALL, Layer, layer, on_device

from sp.ops.delta.delta_mixer import DeltaParams, delta_mixer
from sp.ops.delta.gated_delta_net import gated_delta_net_recurrent

LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000]
TIGHT, WIDE = 5e-6, 2e-4
"""Bounds on the squared error; the second for keys that are all alike."""


def run(sizes: tuple[int, int, int], arrays: dict[str, Any], rows: int) -> tuple[Any, Any, Any]:
    """The op on whatever arrays it is given: y, history and state after it."""
    key_heads, value_heads, dim = sizes
    params = DeltaParams(
        *(arrays[name] for name in ("conv", "a", "dt_bias", "norm")), 1e-6, key_heads, value_heads, dim
    )
    memory = SimpleNamespace(conv=arrays["history"], recurrent=arrays["state"])
    z = arrays["z"][len(arrays["z"]) - rows :]
    y = delta_mixer(arrays["qkv"], z, arrays["alpha"], arrays["beta"], params, memory, rows)
    return y, memory.conv, memory.recurrent


def exact(sizes: tuple[int, int, int], arrays: Layer, rows: int) -> tuple[Any, Any, Any]:
    """The twin in float64."""
    return run(sizes, {name: to_float64(a) for name, a in arrays.items()}, rows)


@pytest.fixture
def careful(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`guarded`, used for everything the op allocates as well: poisoned scratch, guarded outputs."""
    import cupy

    monkeypatch.setattr(cupy, "empty", guarded)
    return guarded


def compare(sizes: tuple[int, int, int], arrays: Layer, rows: int, place: Any, bound: float) -> None:
    want = exact(sizes, arrays, rows)
    device = on_device(arrays, place)
    got = run(sizes, device, rows)
    assert got[1] is device["history"]
    assert got[2] is device["state"]
    np.testing.assert_array_equal(got[1].get(), want[1], err_msg="history")
    assert nmse(got[2], want[2]) < bound, "state"
    if rows:
        assert nmse(got[0], want[0]) < bound, "output"


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("sizes", [PAIR, SMALL], ids=str)
def test_lengths(sizes, tokens, path, careful) -> None:
    compare(sizes, layer(sizes, tokens), tokens, careful, TIGHT)


@pytest.mark.parametrize("tokens", [1, 4153])
def test_real_heads(tokens, path, careful) -> None:
    compare(LARGE, layer(LARGE, tokens), tokens, careful, TIGHT)


@pytest.mark.parametrize("rows", [0, 1, 5, 64])
@pytest.mark.parametrize("tokens", [5, 300])
def test_only_the_last_rows_are_written(rows, tokens, careful) -> None:
    compare(SMALL, layer(SMALL, tokens), min(rows, tokens), careful, TIGHT)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("tokens", [9, 2000])
def test_decays_and_repeated_keys(decay, alike, tokens, path, careful) -> None:
    bound = WIDE if alike else TIGHT
    compare(SMALL, layer(SMALL, tokens, DECAYS[decay], alike), tokens, careful, bound)


@pytest.mark.parametrize("cuts", [[1] * 7 + [193], [64, 17, 1, 118], [199, 1], [16, 3, 3, 65, 113], [100, 100]])
def test_memory_carries_a_sequence_across_calls(cuts, path, guarded) -> None:
    arrays = layer(PAIR, 200)
    want = exact(PAIR, arrays, 200)
    device = on_device(arrays, guarded)
    pieces, start = [], 0
    for cut in cuts:
        part = {name: device[name][start : start + cut].copy() for name in ("qkv", "z", "alpha", "beta")}
        pieces.append(to_float64(run(PAIR, device | part, cut)[0]))
        start += cut
    assert start == 200
    assert nmse(np.concatenate(pieces), want[0]) < TIGHT
    assert nmse(device["state"], want[2]) < TIGHT
    np.testing.assert_array_equal(device["history"].get(), want[1])


@pytest.mark.parametrize("tokens", [3, 1000])
def test_two_runs_agree_to_the_bit(tokens, path, careful) -> None:
    arrays = layer(SMALL, tokens)
    first, second = (run(SMALL, on_device(arrays, careful), tokens) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.get(), other.get())


@pytest.mark.no_sanitizer  # it waits for every launch
def test_decoding_can_be_captured() -> None:
    import cupy

    arrays = layer(LARGE, 1)
    want = to_float64(run(LARGE, {name: cupy.asarray(a) for name, a in arrays.items()}, 1)[0])
    device = {name: cupy.asarray(a) for name, a in arrays.items()}
    memory = device["history"].copy(), device["state"].copy()
    graph = capture(lambda: run(LARGE, device, 1)[0])
    for _ in range(3):
        device["history"][...], device["state"][...] = memory
        graph.replay()
        np.testing.assert_array_equal(to_float64(graph.made), want)


def test_the_reference_is_the_recurrence() -> None:
    """The chunked twin that the tests lean on, against the recurrence, where keys are alike and never decay."""
    rng = np.random.default_rng(1)
    k = rng.standard_normal((1, 1, 64)) + 0.1 * rng.standard_normal((300, 1, 64))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    inputs = k, k, rng.standard_normal((300, 2, 64)), np.zeros((300, 2)), np.full((300, 2), 0.95), np.zeros((2, 64, 64))
    from sp.ops.delta.gated_delta_net import gated_delta_net_chunked

    for one, other in zip(gated_delta_net_chunked(*inputs), gated_delta_net_recurrent(*inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
