"""What does not fit is refused in one line before a kernel sees it, and the device works on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sp.errors import ConfigError, DeviceError, ModelError
from sp.kernels import device_errors
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import STORE
from sp.ops.activations import swiglu
from sp.ops.attention.attention import gate_output, paged_attention
from sp.ops.attention.attention_heads import head_norm_rope
from sp.ops.attention.kv_pages import PagedKV, kv_append, kv_gather
from sp.ops.delta.delta_mixer import DeltaParams, delta_mixer
from sp.ops.embedding import embedding
from sp.ops.matmul.gemm_portable import gated, gemm
from sp.ops.matmul.packed import PackedWeight, allocate, pack
from sp.ops.matmul.project import gated_project, project, project_add
from sp.ops.norms import rms_norm
from sp.ops.rope import Rope
from sp.ops.sampling.sample import Sampling, argmax, sample
from sp.quant import F16, F32, Q4_K, Q8_0, BlockFormat, Weight

Arrays = dict[str, np.ndarray]
ROWS, WIDTH = 64, 256
rng = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def bf16(*shape: int) -> np.ndarray:
    return (f32(*shape).view(np.uint32) >> 16).astype(np.uint16)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


@dataclass(frozen=True)
class Op:
    """An op as a function of arrays, and arrays that it takes; `twin` names the one that makes it run on NumPy."""

    run: Callable[..., Any]
    arrays: Arrays
    twin: str = ""


def packed(data: Any) -> PackedWeight:
    return PackedWeight("w", Q8_0, (ROWS, WIDTH), data)


def filled(fill: Callable[..., None], x: Any, *weights: Any) -> Any:
    """Result of a product that writes to an array it is given."""
    import cupy

    out = cupy.empty((len(x), ROWS), cupy.uint16)
    fill(x, *map(packed, weights), out, *((STORE,) if len(weights) == 1 else ()))
    return out


def gemm_sm90(x: Any, data: Any) -> Any:
    from sp.ops.matmul.gemm_sm90 import gemm

    return filled(gemm, x, data)


def appended(pages: Any, table: Any, start: Any, values: Any) -> Any:
    kv_append(pages, table, start, values, F16)
    return pages


def attend(n: int) -> Op:
    return Op(
        lambda q, k_pages, v_pages, table: paged_attention(q, PagedKV(k_pages, v_pages, table, 200, F16)),
        {
            "q": f16(n, 2, 128),
            "k_pages": f16(2, 128, 1, 128).view(np.uint8),
            "v_pages": f16(2, 128, 1, 128).view(np.uint8),
            "table": np.array([1, 0], np.int32),
        },
        twin="q",
    )


def mix(n: int) -> Op:
    """A Gated DeltaNet layer of two heads."""

    def run(taps: Any, a: Any, dt_bias: Any, norm: Any, conv: Any, recurrent: Any, **tokens: Any) -> Any:
        params = DeltaParams(taps, a, dt_bias, norm, 1e-6, 2, 2, 64)
        return delta_mixer(**tokens, params=params, state=SimpleNamespace(conv=conv, recurrent=recurrent), rows=n)

    tokens = {"qkv": bf16(n, 384), "z": bf16(n, 128), "alpha": f32(n, 2), "beta": f32(n, 2)}
    small = {"taps": f32(384, 4), "a": -np.ones(2, np.float32), "dt_bias": f32(2), "norm": f32(64)}
    return Op(run, {**tokens, **small, "conv": f32(3, 384), "recurrent": f32(2, 64, 64)}, twin="qkv")


DATA = pack("w", Q8_0, (ROWS, WIDTH), Q8_0.encode(f32(ROWS, WIDTH))).data
ROW_BYTES = Q8_0.encode(f32(ROWS, WIDTH))
OPS = {
    "swiglu": Op(swiglu, {"gate": bf16(4, 64), "up": bf16(4, 64)}, twin="gate"),
    "rms_norm": Op(lambda x, weight: rms_norm(x, weight, 1e-6), {"x": f32(4, 64), "weight": f32(64)}, twin="x"),
    "embedding": Op(
        lambda ids, rows: embedding(ids, Weight("w", Q8_0, (ROWS, WIDTH), rows)),
        {"ids": np.array([3, 5], np.int32), "rows": ROW_BYTES},
        twin="ids",
    ),
    "head_norm_rope": Op(
        lambda x, weight, positions: head_norm_rope(x, 128, weight, 1e-6, positions, Rope(1e6, 64)),
        {"x": bf16(4, 2, 128), "weight": f32(128), "positions": np.arange(4)},
        twin="x",
    ),
    "gate_output": Op(
        lambda out, wide: gate_output(out, wide, True), {"out": bf16(4, 2, 128), "wide": bf16(4, 2, 256)}, twin="out"
    ),
    "kv_append": Op(
        appended,
        {
            "pages": np.zeros((2, 128, 1, 256), np.uint8),
            "table": np.array([1, 0], np.int32),
            "start": np.array([7], np.int32),
            "values": f16(130, 1, 128),
        },
        twin="pages",
    ),
    "kv_gather": Op(
        lambda pages, table: kv_gather(pages, table, 200, F16),
        {"pages": f16(2, 128, 1, 128).view(np.uint8), "table": np.array([1, 0], np.int32)},
        twin="pages",
    ),
    "attention of 1": attend(1),
    "attention of 100": attend(100),
    "delta_mixer of 1": mix(1),
    "delta_mixer of 100": mix(100),
    "argmax": Op(argmax, {"logits": f32(1, 1000)}, twin="logits"),
    "sample": Op(
        lambda logits, seed, step: sample(logits, Sampling(), seed, step),
        {"logits": f32(1, 1000), "seed": np.array([1]), "step": np.array([2])},
        twin="logits",
    ),
    "pack": Op(lambda rows: pack("w", Q8_0, (ROWS, WIDTH), rows).data, {"rows": ROW_BYTES}, twin="rows"),
    "gemm_portable": Op(lambda x, data: filled(gemm, x, data), {"x": bf16(70, WIDTH), "data": DATA}),
    "gemm_portable gated": Op(
        lambda x, gate, up: filled(gated, x, gate, up), {"x": bf16(70, WIDTH), "gate": DATA, "up": DATA}
    ),
    "gemm_sm90": Op(gemm_sm90, {"x": bf16(70, WIDTH), "data": DATA}),
}
for n in (1, 70):
    OPS[f"project of {n}"] = Op(
        lambda x, data, weight: project(x, (packed(data),), (weight, 1e-6))[0],
        {"x": f32(n, WIDTH), "data": DATA, "weight": f32(WIDTH)},
        twin="x",
    )
    OPS[f"project_add of {n}"] = Op(
        lambda x, h, data: project_add(x, h, packed(data)),
        {"x": f32(n, ROWS), "h": bf16(n, WIDTH), "data": DATA},
        twin="x",
    )
    OPS[f"gated_project of {n}"] = Op(
        lambda x, gate, up, weight: gated_project(x, packed(gate), packed(up), (weight, 1e-6)),
        {"x": f32(n, WIDTH), "gate": DATA, "up": DATA, "weight": f32(WIDTH)},
        twin="x",
    )


def other_dtype(array: Any) -> Any:
    return array.astype(np.int16 if array.dtype == np.float64 else np.float64)


def strided(array: Any) -> Any:
    """Every second value of a wider array."""
    return array.repeat(2, axis=-1)[..., ::2]


def unaligned(array: Any) -> Any:
    """One element past an aligned address."""
    import cupy

    wider = cupy.empty(array.size + 1, array.dtype)
    wider[1:] = array.ravel()
    return wider[1:].reshape(array.shape)


def on_host(array: Any) -> Any:
    return array.get()


CHANGES = (other_dtype, strided, unaligned, on_host)


def refused(op: Op, name: str, change: Callable[[Any], Any]) -> bool:
    """Whether the change must be noticed; host arrays of the deciding argument run the NumPy twin instead."""
    array = op.arrays[name]
    if change is strided:
        return array.shape[-1] > 1
    if change is unaligned:  # positions and counts may be views that begin anywhere
        return array.dtype not in (np.int32, np.int64)
    return change is not on_host or name != op.twin


BAD = [
    pytest.param(op, name, change, id=f"{title}-{name}-{change.__name__}")
    for title, op in OPS.items()
    for name in op.arrays
    for change in CHANGES
    if refused(op, name, change)
]


def on_device(op: Op) -> dict[str, Any]:
    import cupy

    return {name: cupy.asarray(array) for name, array in op.arrays.items()}


def needs_hopper(op: Op) -> bool:
    return op.run is gemm_sm90 and native_path() != "sm_90a"


@pytest.mark.parametrize(("op", "name", "change"), BAD)
def test_arrays_that_do_not_fit_are_refused(path, op, name, change):
    if needs_hopper(op):
        pytest.skip("needs compute capability 9.0")
    arrays = on_device(op)
    with pytest.raises((DeviceError, ModelError, ConfigError)) as caught:
        op.run(**arrays | {name: change(arrays[name])})
    message = str(caught.value)
    assert "\n" not in message
    assert 20 < len(message) < 300


@pytest.mark.parametrize("title", OPS)
def test_ops_work_after_refusals(path, title):
    """Also shows that the arrays above are refused for the change alone."""
    op = OPS[title]
    if needs_hopper(op):
        pytest.skip("needs compute capability 9.0")
    first = op.run(**on_device(op))
    for name in op.arrays:
        arrays = on_device(op)
        arrays[name] = other_dtype(arrays[name])
        with pytest.raises((DeviceError, ModelError, ConfigError)):
            op.run(**arrays)
    again = op.run(**on_device(op))
    assert bool((first == again).all())


@pytest.mark.parametrize(
    ("fmt", "shape"),
    [(F32, (64, 64)), (Q4_K, (64, 320)), (Q8_0, (64, 96)), (F16, (64, 40)), (F16, (64,)), (F16, (0, 64))],
)
def test_weights_without_a_packed_form(fmt: BlockFormat, shape: tuple[int, ...]):
    with pytest.raises(ModelError, match=r"^blk\.0\.w: ") as caught:
        allocate("blk.0.w", fmt, shape)
    assert "\n" not in str(caught.value)


def test_rows_of_another_length():
    import cupy

    with pytest.raises(ModelError, match=r"^blk\.0\.w"):
        pack("blk.0.w", Q8_0, (ROWS, WIDTH), cupy.zeros((ROWS, Q8_0.row_bytes(WIDTH) - 2), cupy.uint8))


def test_memory_that_is_not_there():
    """More than any GPU has, then more than a limit set on the pool leaves; results are the same afterwards."""
    import cupy

    with pytest.raises(DeviceError, match="memory is full") as caught, device_errors():
        allocate("w", F16, (1 << 20, 1 << 24))
    assert "\n" not in str(caught.value)
    pool, op = cupy.get_default_memory_pool(), OPS["gemm_portable"]
    arrays = on_device(op)
    first = op.run(**arrays)
    pool.free_all_blocks()
    before = pool.get_limit()
    pool.set_limit(size=pool.total_bytes())
    try:
        with pytest.raises(DeviceError, match="memory is full"), device_errors():
            cupy.empty(1 << 26, cupy.uint8)
    finally:
        pool.set_limit(size=before)
    assert bool((op.run(**arrays) == first).all())
