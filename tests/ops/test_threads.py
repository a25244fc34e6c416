"""Work spread over cores: every piece once, errors come out, and results do not depend on the number of cores."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from sp.ops.threads import cores, run_parallel


@pytest.mark.parametrize("pieces", [0, 1, 2, 37])
def test_every_piece_runs_once_with_one_blas_thread(pieces: int) -> None:
    seen, limits = [], []

    def work(piece: int) -> None:
        limits.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        seen.append(piece)

    before = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    run_parallel(work, range(pieces))
    assert sorted(seen) == list(range(pieces))
    assert set(limits) <= {1}
    assert [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"] == before


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
