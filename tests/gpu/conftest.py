"""Fixtures of the GPU tests. Without a usable GPU every test here is skipped with the reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from bounds import measured
from compare import nmse

from sp.bench.record import append, make_record
from sp.errors import DeviceError
from sp.kernels import forced_path
from sp.kernels.device import require_device
from sp.kernels.hashing import all_sources
from sp.kernels.path import PATHS, native_path

__all__ = ["nmse"]

HERE = Path(__file__).parent
GUARD = 1024
POISON = 0xFF  # every byte: a NaN in f16, bf16 and f32, -1 in integers

Guarded = Callable[..., Any]


@cache
def device_problem() -> str | None:
    """Why kernels cannot run here; None if they can."""
    try:
        require_device()
    except DeviceError as error:
        return str(error)
    return None


class SkippedFile(pytest.File):
    """Stands for a file of tests that is not even imported."""

    def collect(self) -> NoReturn:
        pytest.skip(f"no GPU tests: {device_problem()}", allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    found = yield
    if found and file_path.name.startswith("test_") and device_problem():
        return [SkippedFile.from_parent(parent, path=file_path)]
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FOLDER", help="append the outcome of the GPU tests below this folder")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--record", default=None)
    if folder and not hasattr(config, "workerinput"):  # processes of pytest-xdist see but a part each
        config.pluginmanager.register(Recorder(Path(folder)), "gpu-test-recorder")


class Recorder:
    """Writes a record of how the tests of each file of this folder ended, with the GPU and a hash of all kernels.

    A file of which only some tests were selected (``-k``, ``::``) is not recorded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.failures: defaultdict[str, list[str]] = defaultdict(list)
        self.parts: set[str] = set()

    @staticmethod
    def file_of(path: Path) -> str | None:
        return path.relative_to(HERE).as_posix() if HERE in path.parents else None

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.parts |= {name for item in items if (name := self.file_of(item.path))}

    def pytest_configure(self, config: pytest.Config) -> None:
        named = [argument.partition("::") for argument in config.args]
        self.parts |= {name for path, part, _ in named if part and (name := self.file_of(Path(path).absolute()))}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self.file_of(Path(report.fspath).absolute())
        if name is None:
            return
        if report.when == "call" or report.outcome != "passed":
            self.counts[name][report.outcome] += 1
        if report.failed:
            self.failures[name].append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        ran = [name for name, counts in self.counts.items() if counts["passed"] + counts["failed"]]
        for name in ran:
            if name in self.parts:
                terminalreporter.write_line(f"{name}: only some of its tests ran, which is not recorded")
                continue
            metrics = {outcome: self.counts[name][outcome] for outcome in ("passed", "failed", "skipped")}
            made = make_record("gpu_tests", {"tests": [name]}, metrics, self.failures[name], all_sources())
            terminalreporter.write_line(f"{name} recorded in {append(made, self.folder)}: {metrics}")
        if not ran:
            terminalreporter.write_line("no GPU test ran: nothing is recorded")


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    """Make device arrays inside a poisoned buffer: ``guarded(shape, dtype, values=None)``.

    The array and 1 KiB on both sides start as NaN, so that a kernel which leaves part of its output unwritten, or reads
    past its input, shows in the result; a write past either end fails the test when it ends.
    """
    import cupy

    made: list[tuple[Any, int, str]] = []

    def make(shape: int | tuple[int, ...], dtype: Any, values: Any = None) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        buffer = cupy.full(size + 2 * GUARD, POISON, cupy.uint8)
        made.append((buffer, size, f"{np.dtype(dtype)} {shape}"))
        array = buffer[GUARD : GUARD + size].view(dtype).reshape(shape)
        if values is not None:
            array[...] = cupy.asarray(values, dtype)
        return array

    yield make
    cupy.cuda.get_current_stream().synchronize()
    for buffer, size, what in made:
        for side, band in (("before", buffer[:GUARD]), ("after", buffer[GUARD + size :])):
            touched = np.flatnonzero(band.get() != POISON)
            assert touched.size == 0, f"{touched.size} bytes written {side} {what}, first at {touched[0]}"


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on both kernel paths; ops called inside take the one named."""
    if request.param == "sm_90a" and native_path() != "sm_90a":
        pytest.skip("the sm_90a path needs compute capability 9.0")
    with forced_path(request.param):
        yield request.param


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in measured():
        terminalreporter.write_line(line)
