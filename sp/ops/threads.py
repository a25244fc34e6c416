"""Run independent pieces of NumPy work on all cores, with one BLAS thread each.

NumPy releases the interpreter lock inside matrix products and elementwise loops, so plain threads scale. OpenBLAS's own
threads are disabled meanwhile: for tiles of this size they gain nothing, and their busy waiting makes a machine with
other work several times slower."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from typing import Any

from threadpoolctl import ThreadpoolController

from sp.native.team import Team


@cache
def cores() -> int:
    """Return the number of CPUs that this process may use; ``OMP_NUM_THREADS`` lowers it, as in other numeric
    libraries."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(allowed, int(asked)) if asked.isdigit() and int(asked) > 0 else allowed


@cache
def team() -> Team:
    """Return the threads that run compiled loops."""
    return Team(cores())


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="sp-ops")


def _begin_anew() -> None:
    """Drop the pools in the child of a fork: threads stay with the parent, and the pools would wait for them
    forever."""
    team.cache_clear()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


@cache
def _plain() -> bool:
    """Return True if BLAS has had one thread from the start: then nothing need be limited, which costs as much as small
    products."""
    return all(each["num_threads"] == 1 for each in _blas().info())


def run_parallel(work: Callable[..., object], *pieces: Sequence[Any]) -> None:
    """Call `work` on every piece, or with one element of each of several sequences, as `map` does; the calls must write
    to different places and must not call `run_parallel`. The result does not depend on the number of cores.

    >>> import numpy as np
    >>> squares = np.zeros(4)
    >>> def square(i: int) -> None:
    ...     squares[i] = i * i
    >>> run_parallel(square, range(4))
    >>> squares.tolist()
    [0.0, 1.0, 4.0, 9.0]
    """
    with nullcontext() if _plain() else _blas().limit(limits=1):
        if cores() == 1 or len(pieces[0]) == 1:
            for piece in zip(*pieces, strict=True):
                work(*piece)
        else:
            for _ in _pool().map(work, *pieces):
                pass


def token_slices(tokens: int, size: int = 256) -> list[slice]:
    """Split `tokens` into near-equal slices of at most `size`, an even number of them if more than one, so that two,
    four or eight cores finish together. The split depends on the number of tokens only, so that results do not depend
    on the machine.

    >>> token_slices(5, 2)
    [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    pieces = -(-tokens // size)
    pieces += pieces % 2 if pieces > 1 else 0
    edges = [tokens * i // max(pieces, 1) for i in range(pieces + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
