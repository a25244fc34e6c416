"""The study of errors in eight bits: ways to round, and distances, against definitions written the slow way."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from dry_walk import walked

from sp.models import load_model
from sp.models.synthetic.random_blocks import random_blocks
from sp.models.trunk import Trunk, mapped
from sp.quant import Q4_K, Q6_K, Q8_0, Math, Weight
from sp.session.load import embedded

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "eight_bit"))
import errors
import large_model
from roundings import apart, bf16, e4m3, in_groups, int8, integer_form, ours, ways


def e4m3_numbers() -> np.ndarray:
    """All of the format: sign, four bits of exponent from 2^-6 on, three of fraction; no infinities, one NaN a sign."""
    finite = [
        (f / 8 if e == 0 else 1 + f / 8) * 2.0 ** (max(e, 1) - 7)
        for e in range(16)
        for f in range(8)
        if (e, f) != (15, 7)
    ]
    return np.array(sorted({*finite, *(-value for value in finite)}))


def test_e4m3_is_the_nearest_number_of_the_format() -> None:
    numbers, x = e4m3_numbers(), np.random.default_rng(0).uniform(-448, 448, 2000)
    x = np.concatenate([x, x / 100, x / 40_000, numbers])
    nearest = np.abs(x[:, None] - numbers).min(axis=1)
    rounded = e4m3(x)
    assert np.isin(rounded, numbers).all()
    np.testing.assert_array_equal(np.abs(rounded - x), nearest)


def test_bf16_keeps_eight_bits() -> None:
    assert bf16(np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -3.0e38], np.float32)).tolist()[:3] == [1, 1, 1 + 2.0**-6]


def test_groups_have_scales_of_their_own() -> None:
    x = np.array([[127, 1, 254, 1.4]], np.float32)
    assert in_groups(x, 2, 127, np.rint).tolist() == [[127, 1, 254, 2]]
    assert in_groups(0 * x, None, 127, np.rint).tolist() == [[0, 0, 0, 0]]


def test_loud_channels_are_told_by_their_largest_value() -> None:
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    x[:, 7] *= 1000
    kept = apart(int8(256))(x)
    quiet = np.arange(256) != 7
    np.testing.assert_array_equal(kept[:, 7], bf16(x[:, 7]))
    np.testing.assert_array_equal(kept[:, quiet], int8(256)(np.where(quiet, x, 0).astype(np.float32))[:, quiet])


def test_our_rounding_is_that_per_32_but_for_two_bits_of_a_scale() -> None:
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    np.testing.assert_allclose(ours(x), int8(32)(x), atol=2.0**-6)
    assert errors.relative(ours(x) - int8(32)(x), x) < 1e-4


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K, Q8_0], ids=lambda fmt: fmt.name)
def test_an_integer_form_is_the_weight(fmt) -> None:
    blocks = random_blocks(np.random.default_rng(0), fmt, 70 * 512 // fmt.block_size, 0.05)
    w = Weight("w", fmt, (70, 512), blocks.reshape(70, -1))
    form, dense = integer_form(w), w.dense()
    middle = fmt.packing.middle
    assert form.codes.dtype == np.int8
    assert -middle <= form.codes.min() < -middle / 2
    assert middle / 2 < form.codes.max() < middle
    values = form.codes * np.repeat(form.scales, 512 // form.scales.shape[1], axis=1).astype(np.float64)
    if form.shifts is None:
        assert (values.astype(np.float32) == dense).all()
    else:
        values += np.repeat(form.shifts, 32, axis=1)
        np.testing.assert_allclose(values, dense, atol=3e-7 * np.abs(dense).max())


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K], ids=lambda fmt: fmt.name)
def test_every_way_is_near_the_product(fmt) -> None:
    rng = np.random.default_rng(0)
    w = Weight.from_floats("w", rng.standard_normal((32, 512)).astype(np.float32), fmt)
    both = rng.standard_normal((8, 512)).astype(np.float32)
    found = {name: errors.measured(way, w, (both, -both)) for name, way in ways(fmt).items()}
    assert all(1e-4 < metrics["whole"] < 0.06 for metrics in found.values()), found
    assert found["int8 per 32, ours"]["whole"] < found["int8 per 128"]["whole"] < found["int8 per row"]["whole"]


def marked_layers(trunk: Trunk) -> list[int]:
    """How many weights of each layer are in int8."""
    counts = []
    for block in trunk.blocks:
        maths: list[Math] = []
        mapped(block, lambda leaf, maths=maths: maths.append(getattr(leaf, "math", Math.BF16)) or leaf)
        counts.append(maths.count(Math.INT8))
    return counts


def test_layers_left_in_bf16_are_the_first() -> None:
    plain = load_model(embedded("target")).trunk
    for left in large_model.LEFT:
        assert marked_layers(large_model.marked(plain, left)) == [0] * left + [7] * (10 - left)
    assert marked_layers(plain) == [0] * 10


def test_distances_are_those_of_the_definition() -> None:
    exact, found = np.random.default_rng(0).standard_normal((2, 5, 9))
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (exact, found))
    metrics = large_model.Compared(exact).metrics(found)
    assert metrics["kl"] == pytest.approx(np.mean([sum(a * np.log(a / b)) for a, b in zip(p, q, strict=True)]))
    assert metrics["logits"] == pytest.approx(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert metrics["top"] == sum(a.argmax() == b.argmax() for a, b in zip(p, q, strict=True)) / 5
    assert large_model.Compared(exact).metrics(exact) == {"kl": 0, "logits": 0, "top": 1}


WALK = """
import sys
sys.path[:0] = sys.argv[1:3]
import dry_device
dry_device.install()
import numpy as np
import large_model
from sp.kernels import forced_path
from sp.models import load_model
model = load_model(sys.argv[3], device="cuda")
for way, trunk in large_model.ways(model.trunk):
    model.trunk = trunk
    dry_device.launches.clear()
    with forced_path(way["path"]):
        shape = large_model.logits(model, np.arange(large_model.TOKENS)).shape
    names = ("gemm_bytes_sm90", "gemm_bytes_narrow_sm90") if way["path"] == "sm_90a" else ("gemm_bytes_portable",)
    count = sum(dry_device.launches.get(name, 0) for name in names)
    print(way["path"], way["math"], way.get("left", "rule"), *shape, count)
"""


def test_the_large_model_is_read_in_every_way() -> None:
    study = str(Path(large_model.__file__).parent)
    said = [line.split() for line in walked(WALK, study, str(embedded("target"))).splitlines()]
    launches = {(path, math, left): int(count) for path, math, left, *_, count in said}
    assert {(rows, vocab) for *_, rows, vocab, _ in said} == {("264", "4096")}
    assert len(launches) == len(said) == 11
    assert launches["sm_90a", "bf16", "rule"] == launches["portable", "bf16", "rule"] == 0
    by_left = [launches["sm_90a", "int8", str(left)] for left in large_model.LEFT]
    assert by_left == sorted(by_left, reverse=True)
    assert len(set(by_left)) == len(by_left)
    assert launches["sm_90a", "int8", "rule"] == launches["sm_90a", "int8", "2"] == launches["sm_90a", "fp8", "rule"]
    assert launches["portable", "int8", "rule"] > 0
