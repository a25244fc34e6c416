"""Mixtures of experts on the device: routing, sorting, grouped products and whole layers, against float64 and NumPy.

Loads spread over experts, on one of them alone, and of one token; widths of one tile and of more; poisoned outputs.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from device_models import EXPERTS
from file_rows import file_rows

from sp.errors import DeviceError
from sp.models import load_model, prefill
from sp.models.run.tree import TreeReader
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.experts import few, grouped
from sp.ops.experts.expert_mlp import add_experts
from sp.ops.experts.routing import Routing, route
from sp.ops.experts.stack import Stack
from sp.ops.matmul.packed import pack
from sp.quant import Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat, kernel_formats

BOUND = 2e-5
"""As of the plain prefill products: weights are rounded to bf16."""
LOADS = ("spread", "one", "last", "single")


def chosen(tokens: int, count: int, used: int, kind: str) -> np.ndarray:
    """Experts of every token: spread over all, all tokens to the same, the last ones, or one token."""
    rng = np.random.default_rng([tokens, count])
    if kind == "one":
        return np.tile(rng.permutation(count)[:used], (tokens, 1)).astype(np.int32)
    if kind == "last":
        return np.tile(np.arange(count - used, count), (tokens, 1)).astype(np.int32)
    return np.stack([rng.permutation(count)[:used] for _ in range(tokens)]).astype(np.int32)


def stacks(fmt: BlockFormat, count: int, rows: int, width: int, seed: int) -> tuple[Stack, np.ndarray]:
    """Random matrices (count, rows, width) on the device, and their exact values."""
    values = np.random.default_rng(seed).standard_normal((count * rows, width)) / np.sqrt(width)
    data = file_rows(fmt, values.astype(np.float32))
    weight = pack(f"{fmt.name} {rows}x{width}", fmt, (count * rows, width), cupy.asarray(data))
    return Stack(weight, rows, 0, rows), fmt.decode(data).astype(np.float64).reshape(count, rows, width)


def products(matrices: np.ndarray, experts: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of every token with the matrix of each of its experts, (tokens, used, rows)."""
    found = np.empty((*experts.shape, matrices.shape[1]))
    for e, matrix in enumerate(matrices):
        tokens, which = np.nonzero(experts == e)
        found[tokens, which] = x[tokens] @ matrix.T
    return found


@pytest.mark.parametrize(("count", "used"), [(7, 3), (128, 8), (256, 8), (300, 32), (512, 1)])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 1000])
def test_route(count, used, normalised, tokens) -> None:
    logits = np.random.default_rng(count).standard_normal((tokens, count)).astype(np.float32)
    logits[tokens // 2, : count // 2] = 3.0  # equals go by index
    want = route(logits, used, normalised=normalised)
    got = route(cupy.asarray(logits), used, normalised=normalised)
    same = got.experts.get() == want.experts
    assert same.mean() > 0.999  # but for those that are equal in float32 on one side alone
    np.testing.assert_allclose(np.sort(got.weights.get()), np.sort(want.weights), rtol=1e-5)


def test_more_experts_than_kernels_take() -> None:
    with pytest.raises(DeviceError, match="up to 32 of 512"):
        route(cupy.zeros((1, 600), np.float32), 8)


@pytest.mark.parametrize("kind", LOADS)
@pytest.mark.parametrize("tokens", [1, 2, 33, 500, 3000])
def test_places(kind, tokens, path) -> None:
    experts = chosen(1 if kind == "single" else tokens, 64, 6, kind)
    placed = grouped.place(cupy.asarray(experts), 64)
    places, made = placed.places.get(), int(placed.made.get()[0])
    counts = np.bincount(experts.ravel(), minlength=64)
    widest = 256 if path == "sm_90a" else placed.block
    tiles = placed.tiles.get()[:made]
    assert made == -(-counts // widest).sum() <= len(placed.tiles)
    assert np.sort(tiles & 1023).tolist() == np.repeat(np.arange(64), -(-counts // widest)).tolist()
    assert (np.diff(tiles >> 10 & 3) <= 0).all(), "wide tiles first"
    assert len(set(places.tolist())) == experts.size
    owners = np.full(len(placed.tiles), -1)
    for tile in tiles:
        blocks = 1 if 64 << (tile >> 10 & 3) <= placed.block else widest // placed.block
        owners[tile >> 12 : (tile >> 12) + blocks] = tile & 1023
    assert (owners[places // placed.block] == experts.ravel()).all()
    # A tile's width has room for what of its expert it holds.
    for tile in tiles:
        inside = (places >= (tile >> 12) * placed.block) & (places < (tile >> 12) * placed.block + widest)
        mine = (inside & (experts.ravel() == (tile & 1023))).sum()
        assert 0 < mine <= 64 << (tile >> 10 & 3)


@pytest.mark.parametrize("fmt", [Q4_K, Q5_K, Q6_K, Q8_0], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("kind", LOADS)
@pytest.mark.parametrize(("rows", "width", "most"), [(64, 256, 150), (256, 512, 1000), (768, 256, 700)])
def test_grouped_products(fmt, kind, rows, width, most, path) -> None:
    count, used, tokens = 16, 4, 1 if kind == "single" else most
    experts = chosen(tokens, count, used, kind)
    placed = grouped.place(cupy.asarray(experts), count)
    h = np.random.default_rng(3).standard_normal((tokens, width))
    h[:, 5] *= 40
    bits = to_bf16(h)
    sorted_rows = np.full((placed.rows, width), 0x7FC1, np.uint16)  # NaN where no slot is
    places = placed.places.get().reshape(tokens, used)
    sorted_rows[places] = bits[:, None]
    gate, g = stacks(fmt, count, rows, width, 1)
    up, u = stacks(fmt, count, rows, width, 2)
    x, exact = cupy.asarray(sorted_rows), to_float64(bits)
    plain, other = products(g, experts, exact), products(u, experts, exact)
    got = to_float64(grouped.multiply(x, gate, placed))[places]
    assert nmse(got, plain) < BOUND
    got = to_float64(grouped.gated(x, gate, up, placed))[places]
    assert nmse(got, plain / (1 + np.exp(-plain)) * other) < 3 * BOUND


@pytest.mark.parametrize("fmt", kernel_formats(), ids=lambda fmt: fmt.name)
def test_grouped_products_of_every_format(fmt, path) -> None:
    test_grouped_products(fmt, "spread", 64, 256, 150, path)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, 64, 333])
@pytest.mark.parametrize("each", [False, True], ids=["by expert", "by slot"])
def test_a_feed_forward_of_experts(fused, shared, mixed, tokens, each, path, monkeypatch) -> None:
    monkeypatch.setattr(few, "MOST_SLOTS", 10**6 if each else 0)
    if each and mixed:
        pytest.skip("gate and up of two formats are sorted by expert")
    count, used, hidden, ffn = 12, 3, 256, 256
    if fused and mixed:
        pytest.skip("one tensor has one format")
    if fused:
        both, values = stacks(Q4_K, count, 2 * ffn, hidden, 1)
        gate, up = Stack(both.weight, 2 * ffn, 0, ffn), Stack(both.weight, 2 * ffn, ffn, ffn)
        g, u = values[:, :ffn], values[:, ffn:]
    else:
        (gate, g), (up, u) = stacks(Q4_K, count, ffn, hidden, 1), stacks(Q5_K if mixed else Q4_K, count, ffn, hidden, 2)
    down, d = stacks(Q6_K, count, hidden, ffn, 4)
    rng = np.random.default_rng(tokens)
    routing = route(rng.standard_normal((tokens, count)).astype(np.float32), used)
    x, mix = (
        rng.standard_normal((tokens, hidden)).astype(np.float32),
        (rng.standard_normal(hidden) / 16).astype(np.float32),
    )
    h, common = (to_bf16(rng.standard_normal((tokens, hidden))) for _ in range(2))
    wide = to_float64(h)
    want = x.astype(np.float64)
    for t in range(tokens):
        for e, weight in zip(routing.experts[t], routing.weights[t].astype(np.float64), strict=True):
            a = g[e] @ wide[t]
            want[t] += weight * (d[e] @ (a / (1 + np.exp(-a)) * (u[e] @ wide[t])))
    if shared:
        want += (1 / (1 + np.exp(-(wide @ mix))))[:, None] * to_float64(common)
    there = Routing(cupy.asarray(routing.experts), cupy.asarray(routing.weights))
    given = (cupy.asarray(mix), cupy.asarray(common)) if shared else None
    on = cupy.asarray(x)
    got = add_experts(on, cupy.asarray(h), gate, up, down, there, given)
    assert got is on
    assert nmse(got.get() - x, want - x) < 1e-4
    again = add_experts(cupy.asarray(x), cupy.asarray(h), gate, up, down, there, given)
    assert (again == got).all(), "results repeat to the bit, in whatever order slots were sorted"


@pytest.mark.parametrize("fmt", [fmt for fmt in kernel_formats() if few.staged(fmt.packing)], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("tokens", [1, 5])
def test_slots_of_every_format(fmt, tokens) -> None:
    """Rows of 9 and of 3 stages: warps with one, with two and with none."""
    count, used, hidden, ffn = 5, 3, 2304, 768
    (gate, g), (up, u) = stacks(fmt, count, ffn, hidden, 1), stacks(fmt, count, ffn, hidden, 2)
    down, d = stacks(fmt, count, hidden, ffn, 4)
    rng = np.random.default_rng(tokens)
    routing = route(rng.standard_normal((tokens, count)).astype(np.float32), used)
    x, h = rng.standard_normal((tokens, hidden)).astype(np.float32), to_bf16(rng.standard_normal((tokens, hidden)))
    wide, want = to_float64(h), np.zeros((tokens, hidden))
    for t in range(tokens):
        for e, weight in zip(routing.experts[t], routing.weights[t].astype(np.float64), strict=True):
            a = g[e] @ wide[t]
            want[t] += weight * (d[e] @ (a / (1 + np.exp(-a)) * (u[e] @ wide[t])))
    there = Routing(cupy.asarray(routing.experts), cupy.asarray(routing.weights))
    assert few.takes(gate, up, down, there)
    got = cupy.asarray(x)
    few.add_few(got, cupy.asarray(h), gate, up, down, there, None)
    assert nmse(got.get() - x, want) < 1e-5


def test_widths_that_are_no_tiles_are_refused(path) -> None:
    gate, _ = stacks(Q4_K, 4, 64, 256, 1)
    placed = grouped.place(cupy.zeros((5, 2), np.int32), 4)
    rows = cupy.zeros((placed.rows, 256), np.uint16)
    with pytest.raises(DeviceError, match="no multiples of 64"):
        grouped.multiply(rows, Stack(gate.weight, 64, 0, 40), placed)


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("kv", ["f16", "q4_0"])
def test_whole_models(name, kv, path) -> None:
    shape, _, file_type = name.partition(":")
    file = write_synthetic(Path(mkdtemp()) / "m.gguf", shape, file_type, seed=3)
    cpu, gpu = load_model(file), load_model(file, device="cuda")
    ids, n = np.random.default_rng(1).integers(0, 2000, 340), 300
    found = []
    for model in (gpu, cpu):
        cache = model.new_cache(n + 40, kv, rotate=kv == "q4_0")
        first = prefill(model, ids[:n], np.arange(n), cache, chunk=130)
        reader = TreeReader(model, cache, most=16)
        tree = reader.read_tree(ids[n : n + 16], np.arange(16) - 1, n + np.arange(16)).logits
        found.append((first, tree))
    # A router on bf16 inputs sends a token elsewhere where two experts are nearly equal, and then that row differs;
    # a wrong kernel makes all of them differ.
    for got, want in zip(*found, strict=True):
        rows = [nmse(a, b) for a, b in zip(np.atleast_2d(got), np.atleast_2d(want), strict=True)]
        print(f"{name} {kv}: nmse of rows {' '.join(f'{row:.1e}' for row in sorted(rows))}")
        assert np.median(rows) < (4e-3 if kv == "f16" else 0.1)
