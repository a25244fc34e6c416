"""The launcher, the device helpers, tensor maps, guards and timing on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest
from captured import capture
from compare import nmse, to_bf16, to_float64

cp = pytest.importorskip("cupy")

from sp.bench.record import environment, make_record  # noqa: E402
from sp.bench.timing import quartiles, time_kernel  # noqa: E402
from sp.errors import DeviceError  # noqa: E402
from sp.kernels import current_path, device_errors, forced_path, is_device  # noqa: E402
from sp.kernels.path import native_path  # noqa: E402
from sp.kernels.specs.selftest import HOPPER, PRODUCT, SCALARS  # noqa: E402
from sp.kernels.tensor_map import tensor_map  # noqa: E402

hopper_only = pytest.mark.usefixtures("_hopper")
rng = np.random.default_rng(3)


@pytest.fixture
def _hopper() -> None:
    if native_path() != "sm_90a":
        pytest.skip("needs compute capability 9.0")


def test_scalars_and_null_pointers_arrive_whole(guarded):
    out = guarded(6, np.uint64)
    SCALARS.launch((1,), out, -7, -(2**40), 2**32 - 1, 2**64 - 1, 1.5, None)
    want = np.array([-7, -(2**40)], np.int64).view(np.uint64).tolist()
    assert out.get().tolist() == [*want, 2**32 - 1, 2**64 - 1, int(np.float32(1.5).view(np.uint32)), 1]
    SCALARS.launch((1, 1, 1), out, 0, 0, 0, 0, 3, cp.zeros(16, cp.uint8))
    assert out.get().tolist()[4:] == [int(np.float32(3).view(np.uint32)), 0]


def test_an_empty_grid_runs_nothing(guarded):
    out = guarded(6, np.uint64)
    SCALARS.launch((0, 5), out, 0, 0, 0, 0, 0.0, None)
    assert (out.get() == 2**64 - 1).all()


def test_wrong_arguments_are_refused_before_the_launch(guarded):
    out, good = cp.zeros(6, cp.uint64), (0, 0, 0, 0, 0.0, None)
    for bad, why in [
        ((cp.zeros(6, cp.int64), *good), "argument out: expected dtype uint64"),
        ((np.zeros(6, np.uint64), *good), "argument out: expected a uint64 array on the device"),
        ((cp.zeros(12, cp.uint64)[::2], *good), "C-contiguous"),
        ((cp.zeros(7, cp.uint64)[1:], *good), "aligned to 16 bytes"),
        ((out, 1.0, *good[1:]), "argument a: expected an integer"),
        ((out, 2**31, *good[1:]), "does not fit in int32"),
        ((out, *good[:4], "x", None), "argument e: expected a number"),
        ((out, *good[:-1]), "takes 7 arguments, got 6"),
    ]:
        with pytest.raises(DeviceError, match=why):
            SCALARS.launch((1,), *bad)


@pytest.mark.parametrize("f16", [0, 1])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("rows", [16, 11, 0])
def test_warp_product(guarded, f16, trans, rows):
    a, b = rng.standard_normal((16, 16)), rng.standard_normal((8, 16))
    to_bits = (lambda x: x.astype(np.float16).view(np.uint16)) if f16 else to_bf16
    a_bits, b_bits = to_bits(a), to_bits(b)
    back = (lambda x: x.view(np.float16).astype(float)) if f16 else to_float64
    valid = np.where(np.arange(16)[:, None] < rows, back(a_bits), 0) if not trans else back(a_bits)
    given = a_bits.T.copy() if trans else a_bits
    y = guarded((16, 8), np.float32)
    count = 16 if trans else rows
    PRODUCT.launch(
        (1,),
        guarded((16, 16), np.uint16, given),
        guarded((8, 16), np.uint16, b_bits),
        y,
        count,
        defines={"F16": f16, "TRANS": trans},
    )
    want = valid @ back(b_bits).T
    assert nmse(y, want) < 1e-12 if want.any() else not y.get().any()


@hopper_only
@pytest.mark.parametrize("row", [0, 32, 96])
@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_hopper_copies_and_wgmma(guarded, row, tiles):
    rows, k = 130, 64 * tiles
    a, b = to_bf16(rng.standard_normal((rows, k))), to_bf16(rng.standard_normal((8, k)))
    raw = rng.integers(0, 256, 1024, np.uint8)
    a_dev, b_dev, raw_dev = (
        guarded((rows, k), np.uint16, a),
        guarded((8, k), np.uint16, b),
        guarded(1024, np.uint8, raw),
    )
    copy, raw_copy, y = guarded((50, 64), np.uint16), guarded(1024, np.uint8), guarded((64, 8), np.float32)
    a_map = tensor_map(a_dev, (k, rows), (2 * k,), (64, 64))
    b_map = tensor_map(b_dev, (k, 8), (2 * k,), (64, 8))
    copy_map = tensor_map(copy, (64, 50), (128,), (64, 64))
    HOPPER.launch((1,), a_map, b_map, copy_map, raw_dev, raw_copy, y, row, tiles)
    tile = np.zeros((64, k))
    seen = to_float64(a)[row : row + 64]
    tile[: len(seen)] = seen
    assert nmse(y, tile @ to_float64(b).T) < 1e-10
    assert (raw_copy.get() == raw).all()
    assert (to_float64(copy) == tile[:50, -64:]).all()
    assert tensor_map(a_dev, (k, rows), (2 * k,), (64, 64)) is a_map


@hopper_only
def test_a_wrong_tensor_map_is_refused():
    array = cp.zeros((64, 72), cp.uint16)
    for dims, strides, box in [((72, 64), (140,), (64, 64)), ((72, 64), (144,), (72, 64)), ((72,), (144,), (64,))]:
        with pytest.raises(DeviceError, match="tensor map"):
            tensor_map(array, dims, strides, box)


def test_too_much_shared_memory_is_one_error():
    from sp.kernels.launch import KernelSpec

    greedy = KernelSpec(source=SCALARS.source, entry=SCALARS.entry, args=SCALARS.args, threads=1, smem=1 << 20)
    with pytest.raises(DeviceError, match="1048576 bytes of shared memory"):
        greedy.launch((1,), cp.zeros(6, cp.uint64), 0, 0, 0, 0, 0.0, None)


def test_forced_path(path):
    assert current_path() == path
    with forced_path("portable"):
        assert current_path() == "portable"
    assert current_path() == path


def test_is_device():
    assert is_device(cp.zeros(1))
    assert not is_device(np.zeros(1))


def test_out_of_memory_is_a_device_error():
    with pytest.raises(DeviceError, match="memory is full"), device_errors():
        cp.empty(1 << 45, cp.uint8)


def test_launches_are_captured_by_a_graph(guarded):
    out = guarded(6, np.uint64)
    SCALARS.launch((1,), out, 1, 0, 0, 0, 0.0, None)
    graph = capture(lambda: SCALARS.launch((1,), out, 5, 0, 0, 0, 0.0, None))
    cp.cuda.Device().synchronize()
    assert int(out[0]) == 1
    graph.replay()
    assert int(out[0]) == 5


@pytest.mark.no_sanitizer
def test_timing_and_record():
    size = 1 << 28
    source, target = cp.arange(size // 4, dtype=cp.int32), cp.empty(size // 4, cp.int32)
    copy = lambda: target.data.copy_from_device_async(source.data, size, cp.cuda.get_current_stream())  # noqa: E731
    eager, graph = quartiles(time_kernel(copy)), quartiles(time_kernel(copy, graph=True))
    assert (target == source).all()
    rate = 2 * size / eager.median / 1e6
    print(f"device copy {rate:.0f} GB/s eager, {2 * size / graph.median / 1e6:.0f} GB/s in a graph; {environment()}")
    assert 100 < rate < 20_000
    record = make_record("selftest", {}, {"gb_s": rate}, [eager.median], [SCALARS.source])
    assert None not in (record["driver"], record["nvrtc"], record["kernel_hash"])
