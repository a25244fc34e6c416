"""Fixtures for every folder of tests. This file also puts `tests/` on the path, for `import retriever_files`."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from retriever_files import retriever_drafter, retriever_target, retrievers

from sp.errors import DeviceError
from sp.kernels import nvrtc
from sp.plugins import load_plugin

__all__ = ["retriever_drafter", "retriever_target", "retrievers"]

collect_ignore_glob = ["*/make_*.py"]  # scripts that make fixtures; some need PyTorch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--plugin``, as commands of `sp` have it: shared tests of scorers, selectors and tasks cover it too."""
    parser.addoption("--plugin", action="append", default=[], help="Python file or module of a strategy or a task")


def pytest_configure(config: pytest.Config) -> None:
    """Load plugins; have pytest-xdist begin files in the order of `pytest_collection_modifyitems`."""
    for plugin in config.getoption("plugin"):
        load_plugin(plugin)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Examples of docstrings are looked for where there are some: it takes each worker seconds for all files here."""
    found = yield
    if found and ">>> " not in file_path.read_text(encoding="utf-8"):
        return [one for one in found if not isinstance(one, DoctestModule)]
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, then those of most tests: what begins last is short, and workers end together."""
    tests = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (0, item.path.name) if item.path in slow else (1, -tests[item.path]))


def pytest_collection_finish() -> None:
    """Leave what thousands of tests consist of out of every later collection of garbage: a fifteenth of all time.

    And collect seldom: what tests make in numbers ends by its counts. Pictures have a quarter of their dots a side: all
    is drawn, and a sixteenth is stored; the test that looks at pages asks for the rest.
    """
    if figures := sys.modules.get("sp.studies.figures"):
        figures.SHARPNESS = 0.25  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what compiles CUDA where nothing does."""
    if item.get_closest_marker("nvrtc"):
        try:
            nvrtc.version()
        except DeviceError as error:
            pytest.skip(str(error))
