"""The kernel of docs/extending/kernel.md, taken from the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sp.ops.matmul import registry
from sp.ops.matmul.registry import MatmulKernel

PAGE = Path(__file__).parents[1] / "docs" / "extending" / "kernel.md"


@contextmanager
def outside_kernel() -> Iterator[MatmulKernel]:
    """The page's kernel, known inside the block."""
    text = re.search(r"```python\n(# unpacked\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert text is not None, "the page has no file"
    registry.kernels("portable")  # those of the package first
    known = dict(registry._kernels)
    try:
        exec(compile(text[1], str(PAGE), "exec"), {"__name__": "unpacked"})
        yield registry._kernels["unpacked"]
    finally:
        registry._kernels.clear()
        registry._kernels.update(known)
