"""stream_parts with NumPy in the device's place: every byte arrives, in order, and failures leave nothing running."""

from __future__ import annotations

import ctypes
import itertools
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sp.models.device.upload as upload
from sp.errors import GGUFError
from sp.gguf import GGUFFile
from sp.models.device.to_device import row_slices, to_bf16
from sp.models.device.upload import FileRange, stream_parts
from sp.models.network.weights import map_leaves
from sp.quant import BF16, F32
from sp.session.loaded import embedded


class Array(np.ndarray):
    """An array that has a device's kind of address."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class Stream:
    """Does everything at once."""

    ptr = 0

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def record(self, event: object = None) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: None)

    def wait_event(self, event: object) -> None:
        assert event is not None


@pytest.fixture
def memory(monkeypatch):
    """A stand-in for CuPy; its list takes the size of every buffer on the `device`."""
    sizes: list[int] = []

    def empty(nbytes, dtype):
        sizes.append(nbytes)
        return np.full(nbytes, 0xEE, dtype).view(Array)

    cuda = SimpleNamespace(
        Stream=Stream,
        Event=lambda disable_timing: None,
        get_current_stream=Stream,
        Device=lambda number=0: Device(),
        alloc_pinned_memory=bytearray,
        runtime=SimpleNamespace(
            memcpyAsync=lambda target, source, nbytes, kind, stream: ctypes.memmove(target, source, nbytes),
            memcpyHostToDevice=1,
        ),
    )
    monkeypatch.setattr(upload, "import_cupy", lambda: SimpleNamespace(cuda=cuda, empty=empty))
    return sizes


class Device(nullcontext):
    def __int__(self) -> int:
        return 0


@pytest.fixture
def small(monkeypatch):
    """Pieces and a ring so small that both go round many times."""
    monkeypatch.setattr(upload, "PIECE", 1000)
    monkeypatch.setattr(upload, "STAGING", 5000)
    monkeypatch.setattr(upload, "THREADS", 3)
    monkeypatch.setattr(upload, "SLOTS", 4)


def random_file(path, nbytes: int) -> np.ndarray:
    content = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    path.write_bytes(content.tobytes())
    return content


@pytest.mark.usefixtures("small")
def test_all_parts_arrive_in_order(tmp_path, memory) -> None:
    rng = np.random.default_rng(1)
    files = {tmp_path / name: random_file(tmp_path / name, 40_000) for name in "ab"}
    parts, told = [], []
    for size in [1, 999, 1000, 1001, 4000, 7, *rng.integers(1, 4000, 60).tolist()]:
        path = list(files)[int(rng.integers(2))]
        parts.append(FileRange(path, int(rng.integers(0, 40_000 - size)), size))
    for index, data in stream_parts(parts, told.append):
        part = parts[index]
        np.testing.assert_array_equal(np.asarray(data), files[part.path][part.offset : part.offset + part.nbytes])
        assert len(told) == index
    assert told == [part.nbytes for part in parts]
    assert len(memory) == 1
    assert memory[0] <= 2 * (4000 + upload.ALIGN)


@pytest.mark.usefixtures("memory")
def test_no_parts_no_work() -> None:
    assert list(stream_parts([])) == []


@pytest.mark.usefixtures("small", "memory")
def test_a_short_or_missing_file_is_an_error_and_ends_all_threads(tmp_path) -> None:
    random_file(tmp_path / "a", 5000)
    good = FileRange(tmp_path / "a", 0, 3000)
    with pytest.raises(GGUFError, match="ends at byte 5000"):
        list(stream_parts([good, FileRange(tmp_path / "a", 4000, 2000), good]))
    with pytest.raises(GGUFError, match="cannot be opened"):
        list(stream_parts([good, FileRange(tmp_path / "b", 0, 1)]))
    with pytest.raises(GGUFError, match="cannot be read"):
        list(stream_parts([FileRange(tmp_path, 0, 1)]))
    assert not [t for t in threading.enumerate() if t.name.startswith("sp-load")]


@pytest.mark.usefixtures("small", "memory")
def test_leaving_early_ends_all_threads(tmp_path) -> None:
    random_file(tmp_path / "a", 5000)
    for index, _ in stream_parts([FileRange(tmp_path / "a", 0, 3000)] * 20):
        if index == 2:
            break
    assert not [t for t in threading.enumerate() if t.name.startswith("sp-load")]


def test_weights_know_where_in_the_file_they_lie() -> None:
    with GGUFFile.open(embedded("drafter")) as file:
        raw = np.fromfile(file.path, np.uint8)
        for name in file.tensors:
            data = file.weight(name).data
            path, offset = file.locate(data)
            assert path == file.path
            np.testing.assert_array_equal(raw[offset : offset + data.nbytes], data.reshape(-1))
        rows = file.weight("token_embd.weight").data[64:128]
        _, offset = file.locate(rows)
        np.testing.assert_array_equal(raw[offset : offset + rows.nbytes], rows.reshape(-1))
        with pytest.raises(GGUFError, match="not a view"):
            file.locate(rows.copy())


def test_rows_are_cut_into_whole_tiles() -> None:
    for rows, row_bytes in ((1, 144), (64, 1 << 20), (1000, 1 << 19), (248320, 2880)):
        cuts = row_slices(rows, row_bytes)
        assert cuts[0].start == 0
        assert cuts[-1].stop == rows
        assert all(a.stop == b.start and b.start % 64 == 0 for a, b in itertools.pairwise(cuts))
        assert all((cut.stop - cut.start) * row_bytes <= max(64 << 20, 64 * row_bytes) for cut in cuts)


def test_float32_rows_round_to_the_nearest_bf16() -> None:
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    np.testing.assert_array_equal(to_bf16(F32.encode(values)), BF16.encode(values))


def test_mapped_reaches_every_weight_and_array_and_nothing_else() -> None:
    from sp.models import load_model

    path = Path(__file__).parents[1] / "fixtures" / "parity-qwen35.gguf"
    weights, seen = load_model(path).weights, []
    copy = map_leaves(weights, lambda leaf: seen.append(leaf) or leaf)
    with GGUFFile.open(path) as file:
        assert len(seen) == len(file.tensors)
    assert copy.blocks[0].mixer.params.key_heads == weights.blocks[0].mixer.params.key_heads
    assert map_leaves(weights, lambda leaf: None).output_norm is None
