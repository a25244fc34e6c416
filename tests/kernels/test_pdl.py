"""Arguments of the driver for a dependent launch: arrays by address, scalars by value, tensor maps in place."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sp.kernels import pdl


def test_arguments_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    array = SimpleNamespace(data=SimpleNamespace(ptr=0x7F0012345600))
    tensor_map = np.arange(128, dtype=np.uint8)
    arguments = (
        tensor_map,
        array,
        np.int32(-5),
        np.float32(0.5),
        np.uint64(0),
        np.uint32(2**32 - 1),
        tensor_map[::-1].copy(),
    )
    sizes = (128, 8, 4, 4, 8, 4, 128)

    def driver(config: Any, function: Any, pointers: Any, extra: None) -> int:
        given = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
        seen.append([ctypes.string_at(given[i], size) for i, size in enumerate(sizes)])
        told = ctypes.cast(config, ctypes.POINTER(pdl._Config)).contents
        seen.append((*told.grid, *told.block, told.shared, told.stream, told.count, told.attributes[0].id))
        return 0

    stream = SimpleNamespace(ptr=77)
    monkeypatch.setattr(pdl, "driver", lambda: SimpleNamespace(cuLaunchKernelEx=driver))
    monkeypatch.setattr(
        pdl, "import_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))
    )
    pdl.launch_pdl(SimpleNamespace(ptr=1), (66, 2), 384, arguments, 4096)
    values, launch = seen
    wanted = [array.data.ptr.to_bytes(8, "little") if one is array else one.tobytes() for one in arguments]
    assert values == wanted
    assert launch == (66, 2, 1, 384, 1, 1, 4096, 77, 1, pdl.PROGRAMMATIC_STREAM_SERIALIZATION)
