"""Work captured once into a CUDA graph and replayed: the way models run it, and the only one with PDL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Captured:
    """A graph, the stream it was captured on, and what the captured work made: arrays that each replay fills anew."""

    graph: Any
    stream: Any
    made: Any

    def replay(self) -> None:
        """Run the graph on its stream, after all that the device was given before, and wait for it."""
        import cupy

        cupy.cuda.Device().synchronize()  # the stream waits for no other
        self.graph.launch(self.stream)
        self.stream.synchronize()


def capture(work: Callable[[], Any]) -> Captured:
    """Capture `work` on a stream of its own, for the default one cannot be; nothing runs yet.

    Run it once before, so that its kernels are compiled and have the memory they keep.
    """
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        made = work()
        graph = stream.end_capture()
    return Captured(graph, stream, made)
