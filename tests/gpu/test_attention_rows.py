"""Norm and RoPE of heads, pages in and out, gate and rotation on the device against their float64 twins."""

from __future__ import annotations

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from paged import PLAIN, names, some_basis

cp = pytest.importorskip("cupy")

from sp.errors import ConfigError  # noqa: E402
from sp.ops import hadamard, kv_append, kv_gather  # noqa: E402
from sp.ops.attention import attention_heads as heads_module  # noqa: E402
from sp.ops.attention.attention import gate_output  # noqa: E402
from sp.ops.attention.attention_heads import HeadNorms, attention_heads, head_norm_rope, normed_values  # noqa: E402
from sp.ops.attention.key_basis import KeyBasis  # noqa: E402
from sp.ops.attention.kv_pages import PagedKV, unpacked_pages  # noqa: E402
from sp.ops.rope import Rope  # noqa: E402
from sp.quant import F16, F32, Q4_0, Q8_0  # noqa: E402
from sp.quant.cached import K5, V4  # noqa: E402

F16_ROUNDING, BF16_ROUNDING = 2e-7, 4e-6
TOKENS = (1, 2, 31, 33, 129, 1000)


@pytest.fixture(autouse=True)
def _guarded_outputs(guarded, monkeypatch):
    """What an op allocates starts as NaN between guard bands."""
    monkeypatch.setattr(cp, "empty", lambda shape, dtype=float: guarded(shape, dtype))


def bf16_values(rng, shape):
    """Random numbers as bf16 on the device, and exactly those in float64."""
    bits = to_bf16(rng.standard_normal(shape).astype(np.float32))
    return cp.asarray(bits), to_float64(bits)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("heads", "d", "stride", "rope_dim"), [(24, 256, 512, 64), (2, 128, 128, 128), (3, 64, 192, 34), (5, 512, 512, 512)]
)
@pytest.mark.parametrize(("pairing", "normed"), [("halves", True), ("interleaved", True), ("interleaved", False)])
def test_head_norm_rope(tokens, heads, d, stride, rope_dim, pairing, normed):
    rng = np.random.default_rng(tokens)
    x, exact = bf16_values(rng, (tokens, heads, stride))
    weight = rng.uniform(0.5, 2, d).astype(np.float32) if normed else None
    positions, rotary = rng.integers(0, 1_000_000, tokens), Rope(1e7, rope_dim, pairing)
    want = head_norm_rope(exact, d, None if weight is None else weight.astype(np.float64), 1e-6, positions, rotary)
    got = head_norm_rope(x, d, None if weight is None else cp.asarray(weight), 1e-6, cp.asarray(positions), rotary)
    assert got.dtype == np.float16
    assert nmse(got, want) < F16_ROUNDING


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_angles_are_exact_a_million_tokens_in(pairing):
    d, positions, rotary = 128, np.array([0, 1, 999_983, 1_000_000]), Rope(1e6, 128, pairing)
    x = np.zeros((4, 1, d), np.float32)
    first, second = (slice(0, d, 2), slice(1, d, 2)) if pairing == "interleaved" else (slice(64), slice(64, d))
    x[..., first] = 1  # a pair is then the cosine and the sine of its angle, times sqrt(2)
    ones, where = cp.ones(d, np.float32), cp.asarray(positions)
    got = to_float64(head_norm_rope(cp.asarray(to_bf16(x)), d, ones, 0.0, where, rotary))[:, 0]
    angle = positions[:, None] * 1e6 ** (-np.arange(64) / 64)
    for part, want in ((first, np.cos(angle)), (second, np.sin(angle))):
        assert np.abs(got[:, part] - np.sqrt(2) * want).max() < 1e-3  # half an ulp of f16 at sqrt(2) is 4.9e-4


@pytest.mark.parametrize("fmt", [F16, Q8_0, Q4_0, K5, V4], ids=lambda f: f.name)
@pytest.mark.parametrize("d", [64, 128, 256, 512])
@pytest.mark.parametrize(("tokens", "start"), [(1, 0), (1, 127), (2, 126), (129, 255), (300, 3)])
def test_append_stores_the_bytes_of_the_format(fmt, d, tokens, start):
    rng = np.random.default_rng(d + tokens)
    values, exact = bf16_values(rng, (tokens, 3, d))
    exact[0, 0, :32] = 0  # a block without a largest value
    exact[0, 1, :32] = np.resize([1.5, -1.5], 32)  # and one where the first of two decides the sign
    values = cp.asarray(to_bf16(exact))
    table = rng.permutation(9)[:6]
    want = np.full((9, 128, 3, fmt.row_bytes(d)), 0xA5, np.uint8)
    pages, device_table = cp.asarray(want), cp.asarray(table.astype(np.int32))
    basis = KeyBasis.plain(3, d) if fmt is K5 else None
    turned = None if basis is None else basis.on_device()
    kv_append(want, table, start, exact.astype(np.float32), fmt, 0, basis)
    kv_append(pages, device_table, start, values, fmt, 0, turned)
    first = pages.get()
    if fmt in (K5, V4):  # sums of errors and butterflies are taken in another order
        assert (first == want).mean() > 0.998
    else:
        np.testing.assert_array_equal(first, want)
    kv_append(pages, device_table, cp.array([start], np.int32), values.astype(np.uint16), fmt, 0, turned)
    np.testing.assert_array_equal(pages.get(), first)
    end = start + tokens
    got, exactly = to_float64(kv_gather(pages, device_table, end, fmt)), kv_gather(first, table, end, fmt)
    if fmt in (K5, V4):  # levels are made in f16
        np.testing.assert_allclose(got[start:], exactly[start:], rtol=2e-3, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, exactly.astype(np.float16))
    whole = to_float64(unpacked_pages(pages, device_table, end, fmt)).reshape(-1, 3, d)
    np.testing.assert_array_equal(whole[:end], got)
    assert len(whole) % 128 == 0
    assert not whole[end:].any()


def test_append_rounds_f16_keys_as_the_format_does():
    keys = np.random.default_rng(0).standard_normal((77, 2, 256)).astype(np.float16)
    want = np.full((1, 128, 2, Q4_0.row_bytes(256)), 0xA5, np.uint8)
    pages = cp.asarray(want)
    kv_append(want, np.array([0]), 9, keys.astype(np.float32), Q4_0)
    kv_append(pages, cp.zeros(1, np.int32), 9, cp.asarray(keys), Q4_0)
    np.testing.assert_array_equal(pages.get(), want)


@pytest.mark.parametrize(
    ("d", "block"), [(256, 256), (128, 128), (256, 64), (128, 64), (64, 64), (512, 512), (512, 64)]
)
def test_rotated_rows_lose_no_more_than_the_twin_s(d, block):
    rng = np.random.default_rng(d)
    values, exact = bf16_values(rng, (200, 2, d))
    exact[..., 5] *= 16  # an outlier channel
    values = cp.asarray(to_bf16(exact))
    exact = to_float64(to_bf16(exact))
    table = np.array([1, 0])
    twin = np.zeros((2, 128, 2, Q4_0.row_bytes(d)), np.uint8)
    pages = cp.asarray(twin)
    kv_append(twin, table, 0, exact.astype(np.float32), Q4_0, block)
    kv_append(pages, cp.asarray(table.astype(np.int32)), 0, values, Q4_0, block)
    rotated = hadamard(exact, block)
    assert nmse(kv_gather(pages.get(), table, 200, Q4_0), rotated) < 1.01 * nmse(
        kv_gather(twin, table, 200, Q4_0), rotated
    )
    assert (pages.get() == twin).mean() > 0.99


@pytest.mark.parametrize("d", [64, 128, 256, 512])
def test_keys_are_turned_and_turned_back(d):
    rng = np.random.default_rng(d)
    basis, rows = some_basis(rng, 3, d), rng.standard_normal((70, 3, d)).astype(np.float16)
    queries, device = rng.standard_normal((70, 12, d)).astype(np.float16), basis.on_device()
    assert nmse(device.queries(cp.asarray(queries)), basis.queries(queries.astype(np.float64))) < 1e-7
    assert nmse(device.keys(cp.asarray(rows)), basis.keys(rows.astype(np.float64))) < 1e-7
    pages, twin = cp.zeros((1, 128, 3, K5.row_bytes(d)), np.uint8), np.zeros((1, 128, 3, K5.row_bytes(d)), np.uint8)
    kv_append(pages, cp.zeros(1, np.int32), 0, cp.asarray(rows), K5, 0, device)
    kv_append(twin, np.array([0]), 0, rows.astype(np.float32), K5, 0, basis)
    assert (pages.get() == twin).mean() > 0.998
    at = PagedKV(pages, pages, cp.zeros(1, np.int32), 70, K5, True, value_fmt=K5, basis=device)
    assert nmse(at.model_keys(), rows.astype(np.float64)) < 1e-2


def test_pages_of_another_format_or_head_size_are_refused():
    with pytest.raises(ConfigError, match="one of F16, Q8_0"):
        kv_append(cp.zeros((1, 128, 1, 256), np.uint8), cp.zeros(1, np.int32), 0, cp.zeros((1, 1, 64), np.uint16), F32)
    with pytest.raises(ConfigError, match="heads of 96"):
        kv_append(cp.zeros((1, 128, 1, 192), np.uint8), cp.zeros(1, np.int32), 0, cp.zeros((1, 1, 96), np.uint16), F16)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("gated", "unrotate"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("d", [64, 128, 256, 512])
def test_gate_output(tokens, gated, unrotate, d):
    rng = np.random.default_rng(tokens)
    out, exact_out = bf16_values(rng, (tokens, 6, d))
    wide, exact_wide = bf16_values(rng, (tokens, 6, 2 * d))
    want = gate_output(exact_out, exact_wide if gated else None, unrotate)
    assert nmse(gate_output(out, wide if gated else None, unrotate), want) < BF16_ROUNDING


@pytest.mark.parametrize(("pairing", "normed"), [("halves", True), ("halves", False), ("interleaved", False)])
@pytest.mark.parametrize(("fmt", "rotate"), [*PLAIN, ((K5, V4), True), ((Q8_0, Q4_0), True)], ids=names)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "wide", "rope_dim"),
    [(24, 4, 256, 2, 64), (4, 2, 128, 1, 128), (3, 1, 128, 1, 128), (8, 1, 512, 1, 512)],
)
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(("tokens", "start"), [(1, 0), (1, 300), (5, 126), (130, 1)])
@pytest.mark.parametrize("many", [1, 512])
def test_attention_heads_is_norm_rope_append_in_one_launch(
    fmt, rotate, heads, kv_heads, d, wide, rope_dim, tokens, start, pairing, normed, many, values, monkeypatch
):
    monkeypatch.setattr(heads_module, "MANY", many)  # several rows a warp, or one
    rng = np.random.default_rng(tokens)
    q, k, v = (
        cp.asarray(to_bf16(rng.standard_normal((tokens, h, s))))
        for h, s in ((heads, wide * d), (kv_heads, d), (kv_heads, d))
    )
    q_norm, k_norm = (cp.asarray(rng.uniform(0.5, 2, d).astype(np.float32)) for _ in range(2))
    norms, rotary = (
        HeadNorms(*((q_norm, k_norm) if normed else ()), eps=1e-6, values=values),
        Rope(1e7, rope_dim, pairing),
    )
    positions, table = cp.asarray(rng.integers(0, 200_000, tokens)), cp.asarray(rng.permutation(4).astype(np.int32))
    keys, held = fmt if isinstance(fmt, tuple) else (fmt, fmt)
    pages = [cp.full((4, 128, kv_heads, one.row_bytes(d)), 0xA5, np.uint8) for one in (keys, held) * 2]
    basis = some_basis(rng, kv_heads, d).on_device() if keys is K5 else None
    want_q = head_norm_rope(q, d, norms.q, 1e-6, positions, rotary)
    normed_keys = head_norm_rope(k, d, norms.k, 1e-6, positions, rotary)
    kv_append(pages[0], table, start, normed_keys, keys, d if rotate else 0, basis)
    kv_append(
        pages[1], table, start, normed_values(v, norms, positions) if norms.values else v, held, 64 if rotate else 0
    )
    how = {"start": cp.array([start], np.int32), "value_fmt": held, "basis": basis}
    at = PagedKV(pages[2], pages[3], table, 0, keys, rotate, **how)
    got_q = attention_heads(q, k, v, norms, positions, rotary, at)
    np.testing.assert_array_equal(got_q.get().view(np.uint16), want_q.get().view(np.uint16))
    np.testing.assert_array_equal(pages[2].get(), pages[0].get())
    np.testing.assert_array_equal(pages[3].get(), pages[1].get())
