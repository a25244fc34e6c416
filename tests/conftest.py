"""Fixtures for every folder of tests. This file also puts `tests/` on the path, for `import retriever_files`."""

from __future__ import annotations

import gc

from retriever_files import retriever_drafter, retriever_target, retrievers

__all__ = ["retriever_drafter", "retriever_target", "retrievers"]

collect_ignore_glob = ["*/make_*.py"]  # scripts that make fixtures; some need PyTorch


def pytest_collection_finish() -> None:
    """Leave what thousands of tests consist of out of every later collection of garbage: a fifteenth of all time."""
    gc.collect()
    gc.freeze()
