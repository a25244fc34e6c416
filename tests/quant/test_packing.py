"""The table of packings: sizes as they were written by hand, the header made of it, what registering refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.kernels.packings import packings_header
from sp.models.synthetic.synthetic import random_blocks
from sp.quant import (
    BF16,
    F16,
    F32,
    FORMATS,
    Q4_0,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_0,
    BlockFormat,
    Packing,
    Plane,
    Scales,
    format_bits,
    format_by_name,
    kernel_formats,
    packing_of,
    packings_in,
    register_format,
)
from sp.quant.repack import count_repacked, device_format, repack

# Bytes of a 64 x 64 tile in each plane, inputs of a span, bytes of scales and deltas of 64 rows of one, and of a stage.
SIZES = {
    "Q4_K": (2048, 0, 256, 1024, 0, 2304),
    "Q5_K": (2048, 512, 256, 1024, 0, 2816),
    "Q6_K": (2048, 1024, 256, 1024, 128, 3360),
    "IQ3_S": (2048, 0, 256, 512, 128, 2208),
    "IQ4_XS": (2048, 0, 256, 512, 128, 2208),
    "Q3_K": (1024, 512, 256, 1024, 128, 1824),
    "Q8_0": (4096, 0, 64, 256, 0, 1088),
    "Q4_0": (2048, 0, 64, 256, 0, 576),
    "Q4_1": (2048, 0, 64, 512, 0, 640),
    "Q5_0": (2048, 512, 64, 256, 0, 704),
    "Q5_1": (2048, 512, 64, 512, 0, 768),
    "IQ4_NL": (2048, 0, 64, 256, 0, 576),
    "MXFP4": (2048, 0, 64, 128, 0, 544),
    "F16": (8192, 0, 64, 0, 0, 2048),
    "BF16": (8192, 0, 64, 0, 0, 2048),
}
UNITS = {"Q4_K": 9216, "Q5_K": 11264, "Q6_K": 13440, "IQ3_S": 8832, "IQ4_XS": 8832, "Q3_K": 7296}
MINIMA = ("Q4_K", "Q5_K", "Q4_1", "Q5_1")
LOOKED_UP = ("IQ4_XS", "IQ4_NL", "MXFP4")


def test_kernels_read_these_formats_in_this_order() -> None:
    assert [fmt.name for fmt in kernel_formats()] == list(SIZES)
    assert [fmt.name for fmt in kernel_formats() if fmt.packing.super] == list(UNITS)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    p = format_by_name(name).packing
    assert (p.low_bytes, p.high_bytes, p.span, p.scales_bytes, p.deltas_bytes, p.stage_bytes) == SIZES[name]
    assert p.unit_bytes == UNITS.get(name, 4 * SIZES[name][-1])
    assert p.plain == (name in ("F16", "BF16"))
    assert p.minima == (name in MINIMA)
    assert p.lookup == (name in LOOKED_UP)
    assert p.raised == (12 if name == "MXFP4" else 0)  # 0, -1, ... -12 beside IQ4's eight of each sign
    assert p.counted == (name in ("Q6_K", "Q3_K", "Q4_0", "Q5_0", "IQ3_S", "MXFP4"))


def test_codes_of_zero() -> None:
    zeros = {fmt.name: (fmt.packing.zero, fmt.packing.flip) for fmt in kernel_formats()}
    assert zeros | {"Q6_K": (32, 0), "Q8_0": (128, 128), "Q4_0": (8, 0)} == zeros
    assert zeros | {"Q3_K": (4, 0), "Q5_0": (16, 0)} == zeros
    assert {zeros[name] for name in MINIMA} == {(0, 0)}
    p = format_by_name("IQ3_S").packing
    assert [p.first + p.stride * code for code in range(16)] == list(p.values) == list(range(-15, 16, 2))
    assert p.centre == p.values[p.middle] == 1


@pytest.mark.parametrize("name", SIZES)
def test_bytes_on_the_device(name: str) -> None:
    """Those of the file, but for scales of a byte and for codes that are made of vectors."""
    p = format_by_name(name).packing
    assert p.held_bytes == p.block_bytes + {"IQ4_XS": 2, "Q3_K": 4, "IQ3_S": 28}.get(name, 0)


@pytest.mark.parametrize("name", [name for name in SIZES if name != "IQ3_S"])
def test_planes_lie_where_the_decoder_finds_them(name: str) -> None:
    """A bit flipped in a block, where the table says a value lies, changes that value alone."""
    fmt, rng = format_by_name(name), np.random.default_rng(4)
    block = random_blocks(rng, fmt, 1, 1.0)
    before = fmt.decode(block)[0]
    if name == "MXFP4":
        block[:, 1:] = rng.permutation(16)  # of equal nibbles, so that no bit turns 0 to -0 alone
        block[:, 1:] *= 0x11
        before = fmt.decode(block)[0]
    for plane in fmt.packing.planes:
        each = max(1, 8 // plane.bits)
        for k in rng.integers(0, fmt.block_size, 20):
            at, bit = plane.at + k // (plane.run * each) * plane.run + k % plane.run, 0
            if plane.bits < 8:
                bit = plane.bits * (k // plane.run % each)
            changed = block.copy()
            changed[0, at] ^= 1 << bit
            differs = np.flatnonzero(fmt.decode(changed)[0] != before)
            assert differs.tolist() == [k]


def test_the_header_has_the_same_numbers() -> None:
    text = packings_header()
    body = text[text.index("struct Packing<Q6_K") :]
    body = body[: body.index("};")]
    for words in ("low_bytes = 2048", "high_at = 128", "scale_at = 192", "deltas_bytes = 128", "zero = 32"):
        assert words in body
    assert "super = true, minima = false, plain = false, lookup = false, counted = true" in body
    assert "steps = false, vectors = false" in body
    ids = {fmt.name: fmt.ggml_type for fmt in FORMATS.values() if fmt.packing}
    for name, kind in ids.items():
        assert f"{name} = {kind}" in text
    assert f"#define SP_FOR_SUPER(DO) {' '.join(f'DO({name})' for name in UNITS)}\n" in text
    grid = re.search(r"#define SP_GRID_IQ3_S (.*)", text)
    assert grid is not None
    words = [int(word.strip(" u"), 16) for word in grid[1].split(",")]
    assert len(set(words)) == 512
    assert {word >> shift & 255 for word in words for shift in (0, 8, 16, 24)} == set(range(1, 16, 2))


def test_sets_of_formats() -> None:
    assert format_bits(12, 14, 12) == 20480
    assert format_bits(39) == 1 << 39
    assert packings_in(format_bits(39, 12)) == (Q4_K.packing, format_by_name("MXFP4").packing)
    assert packings_in(20480) == (Q4_K.packing, Q6_K.packing)
    assert packings_in(format_bits(1, 8)) == (Q8_0.packing, F16.packing)
    with pytest.raises(KeyError):
        packing_of(41)


def made(**changes: object) -> BlockFormat:
    """A format that could be registered, but for the changes."""
    return replace(Q4_0, **({"name": "MADE", "ggml_type": 200} | changes))


def test_invalid_formats_are_not_registered() -> None:
    before = dict(FORMATS)
    with pytest.raises(ConfigError, match="already registered, as Q4_0"):
        register_format(made(name="Q4_0"))
    with pytest.raises(ConfigError, match="already registered, as Q6_K"):
        register_format(made(ggml_type=14))
    with pytest.raises(ConfigError, match="32 values in 18 bytes, but its packing has 32 values in 20"):
        register_format(made(packing=Packing(32, Plane(4, 4, 16), scales=Scales(0, 4))))
    assert dict(FORMATS) == before


def test_values_of_codes_stand_in_the_header_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tuple(range(-8, 8))
    listed = made(packing=replace(Q4_0.packing, values=table))
    monkeypatch.setattr("sp.kernels.packings.kernel_formats", lambda: (listed,))
    assert f"static constexpr i8 values[] = {{{', '.join(map(str, table))}}};" in packings_header()


@pytest.mark.parametrize(
    ("fmt", "width", "table", "held"),
    [
        (Q5_K, 512, False, Q5_K),
        *((format_by_name(name), 512, table, format_by_name(name)) for name in SIZES for table in (False, True)),
        (F32, 512, False, BF16),
        (F32, 512, True, F32),
        (made(packing=None), 512, False, Q8_0),
        (made(packing=None), 512, True, Q8_0),
        (made(packing=None, block_size=16, block_bytes=10), 48, True, BF16),
        (made(packing=None, block_bytes=36), 512, False, BF16),
    ],
)
def test_the_format_on_the_device(fmt: BlockFormat, width: int, table: bool, held: BlockFormat) -> None:
    assert device_format(fmt, width, table=table) is held


def test_repacking_keeps_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sp.quant.repack.PIECE", 1000)  # several pieces, the last one shorter
    rows = Q6_K.encode(np.random.default_rng(0).standard_normal((37, 512)).astype(np.float32))
    np.testing.assert_array_equal(repack(rows, Q6_K, Q8_0), Q8_0.encode(Q6_K.decode(rows)))
    with pytest.raises(ConfigError, match="NaN or Inf"):
        repack(F32.encode(np.full((2, 32), np.nan, np.float32)), F32, Q8_0)


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if fmt.packing is None], ids=lambda fmt: fmt.name)
def test_formats_without_kernels_become_8_bits(fmt: BlockFormat) -> None:
    """Their values in Q8_0, as a table too, also times a scale; of 37 rows, which are no whole tiles."""
    assert device_format(fmt, 768) is device_format(fmt, 768, table=True) is Q8_0
    rows = random_blocks(np.random.default_rng(0), fmt, 37 * 768 // fmt.block_size, 0.02).reshape(37, -1)
    np.testing.assert_array_equal(repack(rows, fmt, Q8_0), Q8_0.encode(fmt.decode(rows)))
    tripled = fmt.times(3)
    assert device_format(tripled, 768) is Q8_0
    np.testing.assert_array_equal(repack(rows, tripled, Q8_0), Q8_0.encode(fmt.decode(rows) * np.float32(3)))


def test_a_scale_takes_a_format_its_kernels() -> None:
    assert device_format(Q4_K.times(2), 512) is Q8_0
    assert device_format(Q4_K, 512) is Q4_K


def test_repacked_weights_are_counted() -> None:
    odd = made(packing=None)
    counts = count_repacked(
        [
            (odd, (64, 512), False),
            (Q4_K, (64, 512), False),
            (odd, (128, 512), True),
            (F32, (520, 64), False),
            (F32, (48, 64), False),
        ]
    )
    assert [(each.source, each.target, each.tensors) for each in counts] == [
        ("MADE", "Q8_0", 2),
        ("F32", "BF16", 1),
        ("F32", "3 x BF16", 1),
    ]
    assert counts[0].source_bytes == 192 * 512 // 32 * 18
    assert counts[0].target_bytes == 192 * 512 // 32 * 34
    assert str(counts[0]) == "2 tensors of MADE are re-packed as Q8_0 for the GPU: 0.1 MB -> 0.1 MB"
    assert str(counts[1]).startswith("1 tensor of F32 is re-packed as BF16")
    assert counts[2].target_bytes == 3 * 48 * 64 * 2
