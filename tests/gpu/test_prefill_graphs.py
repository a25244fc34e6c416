"""Short prefills in CUDA graphs give what launches one by one give: families, paths, sizes, starts; memory after."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16
from delta_layers import LARGE, PAIR
from twice_as_deep import write_deep

import sp.models.run.graph as prefill_graphs
from sp.decode.base import greedy
from sp.kernels.device import current_device
from sp.models import Model, load_model, prefill
from sp.models.run.graph import PrefillGraphs
from sp.ops.byte_rows import loud
from sp.ops.delta import delta_mixer
from sp.ops.delta.padding import HIDDEN, hide_padding, keep_taps
from sp.ops.matmul import gemm_portable, gemm_sm90
from sp.ops.matmul import gemm_small_m as few
from sp.ops.matmul import gemm_small_m_sm90 as few_sm90

pytestmark = pytest.mark.no_sanitizer  # the captures allocate
DENSE = (
    *("tiny-qwen3:q4_k_m", "tiny-qwen35:q4_k_m", "tiny-qwen35:q8_0", "tiny-llama:q4_k_m", "tiny-qwen2:q8_0"),
    *("tiny-mistral3:q4_k_m", "tiny-muse-glimmer:q4_k_m", "tiny-gemma2:q4_k_m", "tiny-gemma4:q4_k_m"),
)
EXPERTS = ("tiny-qwen3moe:q4_k_m", "tiny-qwen35moe:q4_k_m", "tiny-qwen3next:q4_k_m")
RUNS = (300, 385, 512, 300, 7, 129, 400, 3)
"""Read one after the other; in graphs of 384, 512, 512, 384, 16, 256, 512 and 16 tokens."""
NEW, ROOM = 12, 4096
BOUND = {"f16": 2e-3, "q4_0": 4e-2}
"""Of the squared error between two ways, each of which `test_model.py` holds to half of that."""

COUNTERS = (
    few_sm90._ready,
    few_sm90._partials,
    few._counters,
    gemm_portable._arrivals,
    gemm_sm90._workspace,
    delta_mixer._arrivals,
    loud._peaks,
)
"""What kernels keep from their first use on, zero between launches."""


@cache
def model(name: str) -> Model:
    """On the device; hybrids attend in two layers, the last one and one that is in the graph."""
    return load_model(write_deep(Path(mkdtemp()), *name.split(":")), device="cuda")


def tokens(count: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 2000, count)


@pytest.fixture(autouse=True)
def _poisoned() -> None:
    """What is given out next was full of NaN."""
    cupy.full(1 << 28, 0xFF, cupy.uint8)


def walk(of: Model, cache, graphs, runs=RUNS) -> tuple[list[np.ndarray], list[int]]:
    """Logits after each of the runs, and what is decoded then."""
    cache.reset()
    ids, at, found = tokens(sum(runs)), 0, []
    for n in runs:
        part = slice(at, at + n)
        found.append(prefill(of, ids[part], np.arange(at, at + n), cache, graphs=graphs).copy())
        at += n
        assert cache.tokens == at
    decoded = greedy(of, found[-1], at, cache, eos_ids=frozenset(), max_new_tokens=NEW)
    return [logits.get() for logits in found], decoded


def walked(of: Model, runs, kv="f16", rotate=False, room=ROOM, **how):
    """The walk with graphs, three times over: all is replayed in the last; and how tokens were read then."""
    cache = of.new_cache(room, kv, rotate=rotate)
    graphs = PrefillGraphs(of, cache, **how)
    for _ in range(3):
        graphs.take_counts()
        found = walk(of, cache, graphs, runs)
    told = graphs.take_counts()
    assert graphs.refused is None
    graphs.end()
    return found, told


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_replays_are_what_launches_are(name, path) -> None:
    of = model(name)
    (replayed, tokens_of_graph), told = walked(of, RUNS)
    assert told == {"replayed": sum(RUNS)}
    (eager, tokens_of_eager), told = walked(of, RUNS, eager=True)
    assert told == {"eager": sum(RUNS)}
    for got, want in zip(replayed, eager, strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got, want)
    assert tokens_of_graph == tokens_of_eager


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_padded_runs_are_the_runs_within_rounding(name, path) -> None:
    of = model(name)
    (replayed, _), _ = walked(of, RUNS)
    plain, _ = walk(of, of.new_cache(ROOM), None)
    errors = [nmse(got, want) for got, want in zip(replayed, plain, strict=True)]
    print(f"{name} {path}: nmse {' '.join(f'{error:.1e}' for error in errors)}")
    if name in EXPERTS:  # a router sends a token elsewhere for a rounding, and then all that follows differs a little
        assert np.median(errors) < 5e-2
    else:
        assert max(errors) < BOUND["f16"]


@pytest.mark.parametrize("name", DENSE)
def test_a_run_without_padding_is_the_same_to_the_bit(name, path) -> None:
    of, runs = model(name), (1024, 512, 128, 64)
    (replayed, decoded), told = walked(of, runs)
    assert told == {"replayed": sum(runs)}
    plain, wanted = walk(of, of.new_cache(ROOM), None, runs)
    for got, want in zip(replayed, plain, strict=True):
        np.testing.assert_array_equal(got, want)
    assert decoded == wanted


@pytest.mark.parametrize(
    "n", [3, 4, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127, 128, 129, 640, 1000, 1025, 1279, 2047, 2048]
)
def test_lengths_from_the_first_token_on(n, path) -> None:
    for name in ("tiny-qwen35:q4_k_m", "tiny-qwen3:q4_k_m"):
        of = model(name)
        (replayed, decoded), told = walked(of, (n,))
        assert told == {"replayed": n}
        (eager, wanted), _ = walked(of, (n,), eager=True)
        np.testing.assert_array_equal(replayed[0], eager[0])
        assert decoded == wanted
        plain, _ = walk(of, of.new_cache(ROOM), None, (n,))
        assert nmse(replayed[0], plain[0]) < BOUND["f16"]


@pytest.mark.parametrize("name", ["tiny-qwen35:q4_k_m", "tiny-qwen3:q4_k_m", "tiny-llama:q4_k_m"])
@pytest.mark.parametrize("rotate", [False, True])
def test_packed_pages_from_the_first_token_on(name, rotate, path) -> None:
    of, runs = model(name), (300, 20, 200)
    (replayed, decoded), told = walked(of, runs, "q4_0", rotate)
    assert told == {"replayed": 320, "eager": 200}
    (eager, wanted), _ = walked(of, runs, "q4_0", rotate, eager=True)
    for got, want in zip(replayed, eager, strict=True):
        np.testing.assert_array_equal(got, want)
    assert decoded == wanted
    plain, _ = walk(of, of.new_cache(ROOM, "q4_0", rotate=rotate), None, runs)
    assert max(nmse(got, want) for got, want in zip(replayed, plain, strict=True)) < BOUND["q4_0"]


@pytest.mark.parametrize("name", ["tiny-qwen35:q4_k_m", "tiny-llama:q4_k_m"])
def test_padding_leaves_exact_rows(name, path) -> None:
    of, runs = model(name), (330, 20, 45)  # 330 tokens are padded by 54; 300 would be by 84, and are not padded
    (replayed, decoded), told = walked(of, runs, "4bit", None)
    assert told == {"replayed": sum(runs)}
    (eager, wanted), _ = walked(of, runs, "4bit", None, eager=True)
    for got, want in zip(replayed, eager, strict=True):
        np.testing.assert_array_equal(got, want)
    assert decoded == wanted
    plain, _ = walk(of, of.new_cache(ROOM, "4bit"), None, runs)
    assert max(nmse(got, want) for got, want in zip(replayed, plain, strict=True)) < BOUND["q4_0"]
    _, told = walked(of, (300,), "4bit", None)
    assert told == {"eager": 300}


def test_rotated_pages_and_a_full_cache(path) -> None:
    of, runs = model("tiny-qwen35:q4_k_m"), (300, 100, 45)
    (replayed, _), told = walked(of, runs, rotate=True, room=sum(runs) + NEW)  # padding of the last has no room
    assert told == {"replayed": sum(runs)}
    plain, _ = walk(of, of.new_cache(ROOM, rotate=True), None, runs)
    assert max(nmse(got, want) for got, want in zip(replayed, plain, strict=True)) < BOUND["f16"]


def test_far_behind_the_first_token_and_with_gaps_in_positions(path) -> None:
    of, n = model("tiny-qwen35:q4_k_m"), 20_000
    ids, where = tokens(n + 900), np.arange(n + 900) * 2
    found = []
    for use in (False, True):
        cache = of.new_cache(n + 2000)
        graphs = PrefillGraphs(of, cache) if use else None
        for turn in range(3):  # the same size in all of them, and other starts
            cache.reset()
            start = n - 777 * turn
            prefill(of, ids[:start], where[:start], cache)
            part = slice(start, start + 500 - turn)
            found.append(prefill(of, ids[part], where[part], cache, graphs=graphs).get())
        if graphs is not None:
            assert graphs.take_counts() == {"eager": 500, "captured": 499, "replayed": 498}
            graphs.end()
    for got, want in zip(found[3:], found[:3], strict=True):
        assert nmse(got, want) < BOUND["f16"]


def test_the_last_tokens_of_a_long_prompt(path) -> None:
    of, n = model("tiny-qwen35:q4_k_m"), 2500
    ids, found = tokens(n), []
    cache = of.new_cache(ROOM)
    graphs = PrefillGraphs(of, cache)
    for _ in range(3):
        cache.reset()
        found.append(prefill(of, ids, np.arange(n), cache, chunk=2200, graphs=graphs).get())
    assert graphs.take_counts() == {"eager": 3 * 2200 + 300, "captured": 300, "replayed": 300}
    graphs.end()
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    want = prefill(of, ids, np.arange(n), of.new_cache(ROOM), chunk=2200).get()
    assert nmse(found[0], want) < BOUND["f16"]


def test_recurrent_layers_cross_gaps_between_runs() -> None:
    of = model("tiny-qwen35:q4_k_m")
    ids, where = tokens(600), np.concatenate([np.arange(300), np.arange(500, 800)])
    for gaps in ("reset", "decay"):
        want = prefill(of, ids, where, of.new_cache(ROOM), gaps=gaps).get()
        cache = of.new_cache(ROOM)
        graphs = PrefillGraphs(of, cache)
        for _ in range(3):
            cache.reset()
            got = prefill(of, ids, where, cache, gaps=gaps, graphs=graphs).get()
            assert nmse(got, want) < BOUND["f16"]
        graphs.end()


@pytest.mark.parametrize("name", ["tiny-qwen3:q4_k_m", "tiny-qwen35:q4_k_m", "tiny-qwen35:q8_0"])
def test_counters_made_after_a_capture_stay_zero(name, path) -> None:
    """Runs of 7 are the first that take some kernels, and the graph of 512, captured before, is replayed after them."""
    of, runs = model(name), (512, 512, 512, 7, 512, 7, 512, 40)
    for made in COUNTERS:
        made.cache_clear()
    (found, _), told = walked(of, runs)
    assert told == {"replayed": sum(runs)}
    device = current_device()
    kept = {"started": few_sm90._ready(device), "sums": few_sm90._partials(device, few_sm90.LEAST_PARTIALS)}
    kept |= {"items": few._counters(device), "tiles": gemm_portable._arrivals(device)}
    if of.config.delta:
        kept["heads"] = delta_mixer._arrivals(device, of.config.delta.key_heads)
    assert not {what: int(cupy.count_nonzero(array)) for what, array in kept.items() if array.any()}
    plain, _ = walk(of, of.new_cache(ROOM), None, runs)
    assert max(nmse(got, want) for got, want in zip(found, plain, strict=True)) < BOUND["f16"]


def test_memory_is_given_back() -> None:
    of, pool = model("tiny-qwen35:q4_k_m"), cupy.get_default_memory_pool()
    cache = of.new_cache(ROOM)
    for turn in range(2):  # in the first kernels take what they keep for themselves
        before = pool.used_bytes()
        graphs = PrefillGraphs(of, cache)
        for _ in range(3):
            for n in (16, 64, 300, 512, 2048, 500):
                walk(of, cache, graphs, (n,))
        held = pool.used_bytes() - before
        assert turn == 0 or 0 < held <= graphs.nbytes + (1 << 20), (held, graphs.nbytes)
        graphs.end()
        del graphs
    assert pool.used_bytes() <= before + (1 << 20)


def test_work_that_cannot_be_captured_goes_on_launch_by_launch(monkeypatch) -> None:
    of, n = model("tiny-qwen35:q4_k_m"), 200
    run_layers = prefill_graphs.run_layers

    def waiting(*given, **how):
        x = run_layers(*given, **how)
        cupy.cuda.get_current_stream().synchronize()  # which a capture forbids
        return x

    monkeypatch.setattr(prefill_graphs, "run_layers", waiting)
    cache, found = of.new_cache(ROOM), []
    graphs = PrefillGraphs(of, cache)
    for _ in range(3):
        cache.reset()
        found.append(prefill(of, tokens(n), np.arange(n), cache, graphs=graphs).get())
    assert graphs.refused is not None
    assert graphs.take_counts() == {"eager": 3 * n}
    graphs.end()
    want = prefill(of, tokens(n), np.arange(n), of.new_cache(ROOM)).get()
    for got in found:
        assert nmse(got, want) < BOUND["f16"]


@pytest.mark.parametrize(
    ("sizes", "count", "real"), [(PAIR, 16, 3), (LARGE, 130, 64), (LARGE, 512, 511), (PAIR, 65, 65)]
)
def test_padding_that_a_recurrence_does_not_see(sizes, count, real, guarded) -> None:
    key_heads, value_heads, dim = sizes
    rng, channels = np.random.default_rng(1), (2 * key_heads + value_heads) * dim
    alpha, beta = rng.standard_normal((2, count, value_heads)).astype(np.float32)
    x = to_bf16(rng.standard_normal((count, channels)))
    number = cupy.array([real], np.int32)
    found = [guarded(values.shape, np.float32, values) for values in (alpha, beta)]
    hide_padding(*found, number)
    for got, was in zip(found, (alpha, beta), strict=True):
        np.testing.assert_array_equal(got.get()[:real], was[:real])
        assert (got.get()[real:] == HIDDEN).all()
    taps = guarded((3, channels), np.float32)
    keep_taps(guarded(x.shape, np.uint16, x), taps, number)
    np.testing.assert_array_equal(taps.get(), (x[real - 3 : real].astype(np.uint32) << 16).view(np.float32))
