"""Flatten a kernel source: replace its includes by their text, so that this text alone determines the cubin."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from sp.kernels import packings

CUDA = Path(__file__).parent / "cuda"
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
GENERATED = {packings.NAME: packings.packings_header}  # headers without a file, generated when they are included


@cache
def flatten(source: str) -> str:
    """Read a kernel source and replace every ``#include "x.cuh"`` by the file, once each. ``#line`` directives preserve
    file names and line numbers in compiler messages and profiles. An include must not be inside ``#if``: only its first
    occurrence is expanded. Includes in angle brackets are left to the compiler. `source`: file name, e.g.
    ``"rms_norm.cu"``, in any folder under ``sp/kernels/cuda``. Returns the text that is compiled, cached and hashed."""
    seen: set[str] = set()

    def expand(name: str) -> list[str]:
        seen.add(name)
        where, content = read_source(name)
        lines = [f'#line 1 "{where}"']
        for number, line in enumerate(content.splitlines(), 1):
            include = INCLUDE.match(line)
            if include:
                if include[1] not in seen:
                    lines += [*expand(include[1]), f'#line {number + 1} "{where}"']
                else:
                    lines.append("")
            else:
                lines.append("" if ONCE.match(line) else line)
        return lines

    return "\n".join(expand(source)) + "\n"


def read_source(name: str) -> tuple[str, str]:
    """Return the path of a source or header under ``sp/kernels/cuda``, and its text; a generated header has only a
    name."""
    if name in GENERATED:
        return name, GENERATED[name]()
    path = locate(name)
    return path.relative_to(CUDA).as_posix(), path.read_text(encoding="utf-8")


def locate(name: str) -> Path:
    """Find the file of a source, or of an ``#include "name"``; names are unique over all folders."""
    paths = list(CUDA.rglob(name))
    if not paths:
        raise FileNotFoundError(f"no CUDA source is called {name} under {CUDA}")
    if len(paths) > 1:
        raise FileExistsError(f"{len(paths)} CUDA sources are called {name}: {', '.join(map(str, paths))}")
    return paths[0]
