"""The threads of compiled loops: every item is done once, in order of the lists, whoever else asks."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llvmlite import ir

from sp.native.code import FunctionBuilder
from sp.native.compiled import compile_module
from sp.native.elementwise import normed
from sp.native.team import Team, address, bits, task


def norm(x: np.ndarray, y: np.ndarray, **how: object) -> tuple[int, ...]:
    """A task that norms rows."""
    ones = np.ones(x.shape[1], np.float32)
    norm.kept.append(ones)
    return task(normed().address, len(x), address(x), address(ones), address(y), x.shape[1], bits(0.0), **how)


norm.kept = []


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_item_is_done_once_for_any_number_of_threads(threads: int) -> None:
    team, rng = Team(threads), np.random.default_rng(0)
    for rows in (0, 1, 2, 5, 64, 1000):
        x = rng.standard_normal((rows, 32)).astype(np.float32)
        y = np.full((rows + 2, 32), 7, np.float32)
        team.do([norm(x, y[1:])])
        want = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True))
        np.testing.assert_allclose(y[1:-1], want, rtol=1e-5)
        assert (y[[0, -1]] == 7).all()


def test_later_tasks_see_what_earlier_ones_made() -> None:
    team, x = Team(2), np.random.default_rng(1).standard_normal((300, 64)).astype(np.float32)
    for _ in range(200):
        ys = [np.zeros_like(x) for _ in range(6)]
        beside = [norm(x, ys[0], beside=3), norm(x, ys[1]), norm(x, ys[2])]
        team.do([*beside, norm(ys[2], ys[3]), norm(ys[3], ys[4], alone=True), norm(ys[4], ys[5])])
        for y in ys[1:]:
            np.testing.assert_allclose(y, ys[0], rtol=1e-6)


def test_many_callers_at_once() -> None:
    team, rng = Team(3), np.random.default_rng(2)
    xs = [rng.standard_normal((100, 32)).astype(np.float32) for _ in range(6)]
    want = [np.zeros_like(x) for x in xs]
    for x, y in zip(xs, want, strict=True):
        Team(1).do([norm(x, y)])

    def call(which: int) -> bool:
        good = True
        for _ in range(300):
            y = np.zeros_like(xs[which])
            team.do([norm(xs[which], y), norm(y, y)])
            good &= np.allclose(y, want[which], rtol=1e-6)
        return good

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(6)))


def test_code_that_several_threads_compile_at_once_stays_where_it_is() -> None:
    """Whoever comes second is not the one whose code is kept by a cache; addresses of both are used."""

    def write(module: ir.Module) -> None:
        code = FunctionBuilder(module, "twice", 1, result=True)
        code.end(code.arguments[0] * 2)

    with ThreadPoolExecutor(6) as pool:
        addresses = list(pool.map(lambda _: compile_module(write).address, range(12)))
    gc.collect()
    compile_module(write)
    assert [ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(at)(21) for at in addresses] == [42] * 12


ENDS = """
import os, sys, numpy as np
from sp.native.elementwise import normed
from sp.native.team import Team, address, bits, task
team, x, ones = Team(3), np.ones((64, 32), np.float32), np.ones(32, np.float32)
def go():
    team.do([task(normed().address, 64, address(x), address(ones), address(x), 32, bits(0.0))])
go()
child = os.fork()
go()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_process_ends_while_threads_look_for_work_and_so_does_its_child() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_addresses_of_any_array() -> None:
    x = np.arange(6, dtype=np.float32)
    assert address(x[2:]) - address(x) == 8
    x.flags.writeable = False
    assert address(x) == x.ctypes.data
    assert isinstance(address(x[:0]), int)
