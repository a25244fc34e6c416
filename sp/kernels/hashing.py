"""One short hash for a set of kernel sources as they are today; a measurement carries it to show what it measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sp.kernels.flatten import CUDA, text
from sp.kernels.nvrtc import compile_options


def all_sources() -> tuple[str, ...]:
    """Every kernel source, sorted."""
    return tuple(sorted(path.name for path in CUDA.rglob("*.cu")))


def kernel_hash(sources: Iterable[str]) -> str:
    """Hash of the flattened texts (includes and all) and of the compiler options; order does not matter.

    Raises
    ------
    FileNotFoundError
        If a source is gone.
    """
    digest = hashlib.sha256("\0".join(compile_options({}, "80")).encode())
    for source in sorted(set(sources)):
        digest.update(b"\0" + source.encode() + b"\0" + text(source).encode())
    return digest.hexdigest()[:16]
