"""K-quant encoders give the bytes of the reference algorithm: a scalar transcription here, and ggml's own C code."""

from __future__ import annotations

from pathlib import Path

import kquant_scalar as scalar
import numpy as np
import pytest
from quant_samples import rms, samples

from sp.quant import Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat
from sp.quant.formats.kquants import pack_scales, unpack_scales

GGML = np.load(Path(__file__).with_name("ggml_reference.npz"))
CASES = list(samples(256))


@pytest.mark.parametrize("fmt", [Q4_K, Q5_K], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("case", CASES)
def test_affine_is_the_scalar_algorithm(fmt: BlockFormat, case: str) -> None:
    values = samples(512, seed=9)[case].reshape(2, 256)
    top, first, steps = (15, -1.0, 20) if fmt is Q4_K else (31, -0.5, 15)
    for block, data in zip(values, fmt.encode(values), strict=True):
        ours = scalar.unpack_affine(data, fmt is Q5_K)
        with np.errstate(all="ignore"):
            expected = scalar.encode_affine(block, top, first, steps)
        assert ours == expected


@pytest.mark.parametrize("case", CASES)
def test_symmetric_is_the_scalar_algorithm(case: str) -> None:
    values = samples(1024, seed=10)[case].reshape(4, 256)
    for block, data in zip(values, Q6_K.encode(values), strict=True):
        with np.errstate(all="ignore"):
            assert scalar.unpack_symmetric(data) == scalar.encode_symmetric(block)


@pytest.mark.parametrize("fmt", [Q8_0, Q4_0, Q4_K, Q5_K, Q6_K], ids=lambda fmt: fmt.name)
def test_same_bytes_as_ggml(fmt: BlockFormat) -> None:
    """`ggml_reference.npz` holds what ggml's C functions wrote; see make_ggml_reference.py."""
    values = GGML["values"]
    ours = fmt.encode(values)
    np.testing.assert_array_equal(ours, GGML[fmt.name])
    assert rms(fmt.decode(ours) - values) <= rms(fmt.decode(GGML[fmt.name]) - values)


def test_scales_pack_and_unpack() -> None:
    """Each of the 64 codes in each of the 16 places, alone and among others."""
    rng = np.random.default_rng(11)
    scales = rng.integers(0, 64, (1024, 8), dtype=np.uint8)
    minima = rng.integers(0, 64, (1024, 8), dtype=np.uint8)
    for j in range(8):
        scales[64 * j : 64 * j + 64, j] = np.arange(64)
        minima[512 + 64 * j : 576 + 64 * j, j] = np.arange(64)
    out = np.empty((1024, 12), np.uint8)
    pack_scales(scales, minima, out)
    back = unpack_scales(out)
    np.testing.assert_array_equal(back[0], scales)
    np.testing.assert_array_equal(back[1], minima)


@pytest.mark.parametrize("fmt", [Q4_K, Q5_K, Q6_K], ids=lambda fmt: fmt.name)
def test_decoded_blocks_encode_to_no_worse(fmt: BlockFormat) -> None:
    """Encoding what was decoded loses little: the grid is nearly a fixed point."""
    values = samples(4096, seed=12)["normal"]
    once = fmt.decode(fmt.encode(values))
    twice = fmt.decode(fmt.encode(once))
    assert rms(twice - once) < 0.5 * rms(once - values)
