"""A short hash of a set of kernel sources as they are now; a measurement records it to show what was measured."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache

from sp.kernels.flatten import CUDA, flatten
from sp.kernels.host_code import host_digest
from sp.kernels.nvrtc import compile_options

LINE = re.compile(r"^#line .*\n", re.MULTILINE)
TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
SPACE = re.compile(r"[ \t]+")


def all_sources() -> tuple[str, ...]:
    """Return the names of all kernel sources, sorted."""
    return tuple(sorted(path.name for path in CUDA.rglob("*.cu")))


def kernel_hash(sources: Iterable[str]) -> str:
    """Hash the compiled text and the launches of kernels; order does not matter. It covers the compiler's options, the
    flattened texts (with includes) without comments and blanks, and the Python that plans the launches, see
    `sp.kernels.host_code`: a record outlives new prose, but not a new tile or grid. FileNotFoundError if a source is
    gone."""
    digest = hashlib.sha256("\0".join(compile_options({}, "80")).encode())
    for source in sorted(set(sources)):
        digest.update(b"\0" + source.encode() + b"\0" + bare(flatten(source)).encode())
        digest.update(b"\0" + host_digest(source))
    return digest.hexdigest()[:16]


@cache
def bare(text: str) -> str:
    """Strip comments, blank lines, indentation and ``#line`` directives from a flattened text.

    >>> bare("int a;  // first; /* and */")
    'int a;'
    """
    code = TOKEN.sub(lambda match: " " if match[0].startswith(("//", "/*")) else match[0], LINE.sub("", text))
    lines = (SPACE.sub(" ", line).strip() for line in code.splitlines())
    return "\n".join(line for line in lines if line)
