"""Fixtures for every folder of tests. This file also puts `tests/` on the path, for `import retriever_files`."""

from __future__ import annotations

from retriever_files import retriever_drafter, retriever_target, retrievers

__all__ = ["retriever_drafter", "retriever_target", "retrievers"]

collect_ignore_glob = ["*/make_*.py"]  # scripts that make fixtures; some need PyTorch
