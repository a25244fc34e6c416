"""Chosen experts for a few tokens, on the host: rows that end inside a stage, biases, clamped gates; whole kernels.

A warp is a block (host_warp.h), so a wrong address, scale or bias shows without a GPU. Against float64, with random
blocks; shared memory holds NaN at first. Bounds on the NMSE: a token as 16-bit integers (1e-7), the first half as bf16.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, compiled, pointer

from sp.kernels.specs.experts import strip_variant
from sp.models.synthetic.synthetic import random_blocks
from sp.ops.activations import swiglu
from sp.ops.experts.clamped import CLAMP, SLOPE, clamped_swiglu
from sp.ops.experts.few import STAGE
from sp.ops.matmul.fragment_order import pack_numpy, plane_offsets
from sp.quant import BlockFormat, format_by_name

COUNT, USED, TOKENS = 3, 2, 2
CASES = [
    ("MXFP4", 320, 64),
    ("MXFP4", 448, 192),
    ("MXFP4", 256, 256),
    ("Q8_0", 320, 128),
    ("Q5_0", 192, 64),
    ("Q4_1", 320, 64),
    ("Q4_K", 512, 256),
]
"""Format, and the widths on either side: less than a stage, one and a part, whole ones."""
START = r"""
struct Job {
    const u16 *x, *unused;
    const i32* experts;
    const f32* weights;
    const u8 *one, *two;
    const f32 *bias, *second_bias;
    void* y;
    i32 used, supers, tail;
    u32 held, pitch;
};
extern "C" void run(const Job* job, int blocks, int slots) {
    memset(shared, 0xff, sizeof shared);
    gridDim = {unsigned(blocks), unsigned(slots), 1};
    for (int slot = 0; slot < slots; ++slot)
        for (int block = 0; block < blocks; ++block) {
            blockIdx = {unsigned(block), unsigned(slot), 0};
            run_warp([](int lane, void* given) {
                const Job& j = *static_cast<const Job*>(given);
                threadIdx = {unsigned(lane), 0, 0};
                CALL;
            }, const_cast<Job*>(job));
        }
}
"""
SLOTS = r"""
struct Slots {
    const u16 *gate, *up;
    const f32 *gate_bias, *up_bias;
    const i32 *experts, *places;
    u16* mid;
    i32 cols8;
};
extern "C" void run(const Slots* job, int slots) {
    for (int slot = 0; slot < slots; ++slot) {
        blockIdx = {unsigned(slot), 0, 0};
        run_warp([](int lane, void* given) {
            const Slots& j = *static_cast<const Slots*>(given);
            threadIdx = {unsigned(lane), 0, 0};
            gate_slots(j.gate, j.up, j.gate_bias, j.up_bias, j.experts, j.places, j.mid, j.cols8);
        }, const_cast<Slots*>(job));
    }
}
"""
CALLS = {
    "expert_gated.cu": "expert_gated(j.x, j.experts, j.one, j.two, (u16*)j.y, j.used, j.supers, j.held, j.pitch, 0, 0, "
    "j.tail, j.bias, j.second_bias)",
    "expert_down.cu": "expert_down(j.x, j.experts, j.weights, j.one, nullptr, nullptr, nullptr, (f32*)j.y, j.used, "
    "j.supers, j.held, j.pitch, 0, j.tail, j.bias)",
}


class Job(ctypes.Structure):
    """Arguments of START."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("x", "unused", "experts", "weights", "one", "two", "bias", "second", "y")
        ),
        *((name, ctypes.c_int) for name in ("used", "supers", "tail")),
        *((name, ctypes.c_uint) for name in ("held", "pitch")),
    )


class Slots(ctypes.Structure):
    """Arguments of SLOTS."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate", "up", "gate_bias", "up_bias", "experts", "places", "mid")),
        ("cols8", ctypes.c_int),
    )


@cache
def library(source: str, kind: int, width: int, clamped: int) -> ctypes.CDLL:
    defines = strip_variant(kind, 2, tail=width % STAGE > 0) | {"WARPS": 1, "DEPTH": 2, "CLAMPED": clamped}
    defines["__CUDA_ARCH__"] = 800
    return compiled(source, START.replace("CALL", CALLS[source]), defines, Path(mkdtemp()), whole=True)


def stack(fmt: BlockFormat, rows: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of all experts in fragment order, and their values (count, rows, width)."""
    shape = COUNT * rows, width
    blocks = random_blocks(np.random.default_rng(seed), fmt, shape[0] * width // fmt.block_size, 0.3)
    offsets = plane_offsets("w", fmt, shape)
    data = aligned(np.zeros(offsets.end, np.uint8))
    for name, plane in pack_numpy(fmt, blocks.reshape(shape[0], -1)).items():
        at = getattr(offsets, name)
        data[at : at + len(plane)] = plane
    return data, fmt.decode(blocks.reshape(shape[0], -1)).astype(np.float64).reshape(COUNT, rows, width)


def bf16(values: np.ndarray) -> np.ndarray:
    return aligned((np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16))


def wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want) ** 2).sum() / (want**2).sum())


def job(x: np.ndarray, experts: np.ndarray, width: int, rows: int, y: np.ndarray, **more: np.ndarray | None) -> Job:
    arrays = {name: pointer(value) for name, value in more.items() if value is not None}
    sizes = {"used": USED, "supers": -(-width // STAGE), "tail": (width - 1) % STAGE // 64 + 1}
    given = {"x": pointer(x), "experts": pointer(experts), "y": pointer(y)}
    return Job(**given, **arrays, **sizes, held=COUNT * rows // 64, pitch=rows // 64)


@pytest.mark.parametrize(("name", "width", "rows"), CASES)
@pytest.mark.parametrize("biased", [False, True])
def test_first_half(name: str, width: int, rows: int, biased: bool) -> None:
    fmt, rng = format_by_name(name), np.random.default_rng(width)
    (gate, g), (up, u) = stack(fmt, rows, width, 1), stack(fmt, rows, width, 2)
    h = bf16(rng.standard_normal((TOKENS, width)))
    experts = aligned(np.array([[2, 0], [1, 2]], np.int32))
    a, b = (aligned(rng.standard_normal((COUNT, rows)).astype(np.float32)) if biased else None for _ in range(2))
    mid = aligned(np.full((TOKENS, USED, rows), 0x7FC1, np.uint16))
    library("expert_gated.cu", fmt.ggml_type, width, int(biased)).run(
        ctypes.byref(job(h, experts, width, rows, mid, one=gate, two=up, bias=a, second=b)), rows // 16, TOKENS * USED
    )
    left, right = (np.einsum("tjrk,tk->tjr", m[experts], wide(h)) for m in (g, u))
    if a is not None and b is not None:
        left, right = np.minimum(left + a[experts], CLAMP), np.clip(right + b[experts], -CLAMP, CLAMP) + 1
    want = left / (1 + np.exp(-left * (SLOPE if biased else 1))) * right
    assert nmse(wide(mid), want) < 1e-5


@pytest.mark.parametrize(("name", "width", "rows"), CASES)
@pytest.mark.parametrize("biased", [False, True])
def test_second_half(name: str, width: int, rows: int, biased: bool) -> None:
    fmt, rng = format_by_name(name), np.random.default_rng(width)
    down, d = stack(fmt, rows, width, 3)
    mid = bf16(rng.standard_normal((TOKENS, USED, width)))
    experts = aligned(np.array([[0, 1], [2, 0]], np.int32))
    weights = aligned(rng.random((TOKENS, USED), np.float32))
    bias = aligned(rng.standard_normal((COUNT, rows)).astype(np.float32)) if biased else None
    x = aligned(rng.standard_normal((TOKENS, rows)).astype(np.float32))
    before = x.astype(np.float64)
    library("expert_down.cu", fmt.ggml_type, width, 0).run(
        ctypes.byref(job(mid, experts, width, rows, x, weights=weights, one=down, bias=bias)), rows // 16, TOKENS
    )
    said = np.einsum("tjrk,tjk->tjr", d[experts], wide(mid)) + (0 if bias is None else bias[experts])
    want = (weights[..., None].astype(np.float64) * said).sum(1)
    assert nmse(x - before, want) < 1e-7


@pytest.mark.parametrize("clamped", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
def test_gates_between_sorted_products(clamped: int, biased: bool, tmp_path: Path) -> None:
    """More columns than a block takes at once, and rows of NaN that no slot has."""
    rng, slots, rows, cols = np.random.default_rng(4), 5, 9, 8 * 130
    places = aligned(rng.permutation(rows)[:slots].astype(np.int32))
    experts = aligned(rng.integers(0, COUNT, slots).astype(np.int32))
    gate, up, mid = (aligned(np.full((rows, cols), 0x7FC1, np.uint16)) for _ in range(3))
    for one in (gate, up):
        one[places] = bf16(5 * rng.standard_normal((slots, cols)))
    a, b = (aligned(rng.standard_normal((COUNT, cols)).astype(np.float32)) for _ in range(2))
    more = {"gate_bias": pointer(a), "up_bias": pointer(b)} if biased else {}
    arrays = {"gate": gate, "up": up, "experts": experts, "places": places, "mid": mid}
    given = Slots(**{name: pointer(value) for name, value in arrays.items()}, **more, cols8=cols // 8)
    defines = {"CLAMPED": clamped, "HOST_LANES": 128, "__CUDA_ARCH__": 800}
    compiled("gate_slots.cu", SLOTS, defines, tmp_path, whole=True).run(ctypes.byref(given), slots)
    left, right = wide(gate[places]), wide(up[places])
    if biased:
        left, right = left + a[experts], right + b[experts]
    want = (clamped_swiglu if clamped else swiglu)(left, right)
    assert np.abs(wide(mid[places]) - want).max() < 2**-8 * np.abs(want).max()
    assert nmse(wide(mid[places]), want) < 1e-5
    assert (np.delete(mid, places, axis=0) == 0x7FC1).all(), "rows that no slot has are not written"
