"""Work spread over cores: every piece once, errors come out, and results do not depend on the number of cores."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from sp.ops.threads import cores, run_parallel


def blas_threads() -> list[int]:
    """Return the threads of NumPy's BLAS; SciPy has another BLAS, which is not used here."""
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas" and "numpy" in one["filepath"]]


@pytest.mark.parametrize("pieces", [0, 1, 2, 37])
def test_every_piece_runs_once_with_one_blas_thread(pieces: int) -> None:
    seen, limits = [], []

    def work(piece: int) -> None:
        limits.extend(blas_threads())
        seen.append(piece)

    before = blas_threads()
    assert before
    run_parallel(work, range(pieces))
    assert sorted(seen) == list(range(pieces))
    assert set(limits) <= {1}
    assert blas_threads() == before


def test_an_error_in_a_piece_reaches_the_caller() -> None:
    def work(piece: int) -> None:
        if piece == 3:
            raise ValueError("piece 3")

    with pytest.raises(ValueError, match="piece 3"):
        run_parallel(work, range(5))


PROGRAM = """
import numpy as np
from sp.ops import linear
from sp.ops.attention.attention import attention
from sp.ops.threads import cores
from sp.quant import F32, Weight
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((700, heads, 32)).astype(np.float32) for heads in (4, 2, 2))
w = Weight.from_floats("w", rng.standard_normal((96, 128)).astype(np.float32), F32)
out = attention(q, k, v)
print(cores(), out.tobytes().hex()[:64], out.astype(float).sum(), linear(out.reshape(700, 128), w).astype(float).sum())
"""


def test_results_are_the_same_bits_on_one_core() -> None:
    lines = []
    for count in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "OMP_NUM_THREADS": count},
            capture_output=True,
            text=True,
            check=True,
        )
        lines.append(done.stdout.split())
    assert lines[0][0] == "1"
    assert lines[0][1:] == lines[1][1:]
    assert cores() >= 1
    assert np.isfinite(float(lines[0][2]))


FORKS = """
import os, signal
import numpy as np
from sp.ops import linear
from sp.ops.threads import run_parallel, team
from sp.quant import Q8_0, Weight
w = Weight.from_floats("w", np.ones((64, 128), np.float32), Q8_0)
xs = [np.ones((tokens, 128), np.float32) for tokens in (4, 600)]
def go():
    return b"".join(linear(x, w).tobytes() for x in xs)
want, before = go(), team()
before._mine.acquire()  # as where another thread multiplies meanwhile
child = os.fork()
if not child:
    signal.alarm(30)
    good = go() == want and team() is not before and not team()._mine.locked()
    os._exit(0 if good else 1)
before._mine.release()
assert go() == want and team() is before
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_its_own_threads() -> None:
    """It inherits pools whose threads stayed with its parent: work that is handed to them is never done."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
