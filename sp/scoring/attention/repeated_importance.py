"""RepeatedImportance: what a layer adds to importance on the device, recorded in one layer and repeated in others."""

from __future__ import annotations

from typing import Any, NamedTuple

from sp.kernels import debugging, import_cupy, is_device
from sp.kernels.repeats import Recording, Repeat, watched
from sp.kernels.scratch import Scratch
from sp.ops.attention.importance import Folded, importance, in_kernel
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.reduction import Reduction

MOST_TOKENS = 1 << 18
"""Of a prompt whose launches are recorded: of longer ones the device takes longer than the host, and the weights of a
layer, which are held meanwhile, take more than 128 MiB of 8 queries and 16 heads."""


class _Known(NamedTuple):
    """What was recorded, for what, and what it writes beside the running result."""

    like: tuple[Any, ...]
    repeat: Repeat
    folded: Folded


class RepeatedImportance:
    """`importance` of layer after layer, folded into one running result; the same to the bit.

    Queries, keys and their pages are exchanged. Nothing is repeated on the CPU, for a reduction that is not done in the
    kernel, or under a limit of memory.

    Parameters
    ----------
    reduction : Reduction
    by_head : bool

    Examples
    --------
    >>> import numpy as np
    >>> from sp.ops.attention.kv_pages import kv_append
    >>> from sp.quant import F32
    >>> pages = np.zeros((1, 4, 1, 8), np.uint8)
    >>> kv_append(pages, np.array([0]), 0, np.ones((4, 1, 2), np.float32), F32)
    >>> again = RepeatedImportance(Reduction(pool=1), by_head=False)
    >>> again.fold(np.ones((1, 2, 2), np.float32), PagedKV(pages, pages, np.array([0]), 4, F32), None).running.tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """

    def __init__(self, reduction: Reduction, by_head: bool) -> None:
        self._reduction, self._by_head = reduction, by_head
        self._able = in_kernel(reduction) and not debugging() and not watched.get()
        self._scratch: Scratch | None = None
        self._known: _Known | None = None

    def fold(self, q: Any, at: PagedKV, running: Any, *, causal: bool = True) -> Folded:
        """See `importance`."""

        def made() -> Folded:
            return importance(q, at, self._reduction, running, causal=causal, by_head=self._by_head)

        if running is None or not (is_device(q) and self._able and at.tokens <= MOST_TOKENS):
            return made()
        arrays: list[Any] = [q, at.k, at.table]
        stream = import_cupy().cuda.get_current_stream().ptr
        like = (q.shape, at.k.shape, at.table.shape, at.tokens, at.fmt, causal, running.data.ptr, stream)
        if self._known is not None:
            if like != self._known.like:
                return made()
            self._known.repeat([one.data.ptr for one in arrays])
            return _apart(self._known.folded)
        if import_cupy().get_default_memory_pool().get_limit():
            return made()
        self._scratch = Scratch()
        recording = Recording(self._scratch)
        with recording.going_on():
            folded = made()
        repeat = recording.repeat(arrays)
        self._able = repeat is not None
        if repeat is not None:
            self._known = _Known(like, repeat, folded)
        return _apart(folded)

    def end(self) -> None:
        """Give all memory back; what was queued on the present stream still finds it."""
        self._known = None
        if self._scratch is not None:
            self._scratch.end()
            self._scratch = None


def _apart(folded: Folded) -> Folded:
    """What a layer leaves, for later: the next one's is written in the same place."""
    return Folded(folded.running, folded.by_layer.copy(), None if folded.by_head is None else folded.by_head.copy())
