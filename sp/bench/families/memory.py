"""The card's memory: a copy, as the ceiling to hold other figures against."""

from __future__ import annotations

from collections.abc import Iterator

from sp.bench.cases import Case, family
from sp.kernels import import_cupy

BYTES = 1 << 29


@family("memory")
def cases() -> Iterator[Case]:
    """Device-to-device copy, bytes read plus bytes written."""
    cupy = import_cupy()
    source, target = cupy.arange(BYTES // 4, dtype=cupy.int32), cupy.empty(BYTES // 4, cupy.int32)

    def copy() -> None:
        target.data.copy_from_device_async(source.data, BYTES, cupy.cuda.get_current_stream())

    yield Case({"copy": BYTES}, "cuda", copy, bytes=2 * BYTES)
