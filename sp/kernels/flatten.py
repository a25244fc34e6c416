"""One self-contained text a kernel source: its includes put in place, so that the text alone decides the cubin."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from sp.kernels import packings

CUDA = Path(__file__).parent / "cuda"
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
WRITTEN = {packings.NAME: packings.packings_header}  # headers that are no files but written when they are included


@cache
def flatten(source: str) -> str:
    """Read a kernel source with every ``#include "x.cuh"`` replaced by the file, once each. ``#line`` directives keep
    file names and line numbers in compiler messages and profiles. An include must not stand inside ``#if``: only its
    first appearance counts. Includes in angle brackets are left to the compiler. `source`: file name, e.g.
    ``"rms_norm.cu"``, in whichever room under ``sp/kernels/cuda`` the file lies. Returns the text that is
    compiled, cached and hashed."""
    seen: set[str] = set()

    def expand(name: str) -> list[str]:
        seen.add(name)
        where, content = read(name)
        lines = [f'#line 1 "{where}"']
        for number, line in enumerate(content.splitlines(), 1):
            found = INCLUDE.match(line)
            if found:
                if found[1] not in seen:
                    lines += [*expand(found[1]), f'#line {number + 1} "{where}"']
                else:
                    lines.append("")
            else:
                lines.append("" if ONCE.match(line) else line)
        return lines

    return "\n".join(expand(source)) + "\n"


def read(name: str) -> tuple[str, str]:
    """Where a source or header lies under ``sp/kernels/cuda``, and its text; a written one lies there by its name."""
    if name in WRITTEN:
        return name, WRITTEN[name]()
    path = locate(name)
    return path.relative_to(CUDA).as_posix(), path.read_text(encoding="utf-8")


def locate(name: str) -> Path:
    """The file of a name, a source or what ``#include "name"`` means; names are unique over all rooms."""
    found = list(CUDA.rglob(name))
    if not found:
        raise FileNotFoundError(f"no CUDA source is called {name} under {CUDA}")
    if len(found) > 1:
        raise FileExistsError(f"{len(found)} CUDA sources are called {name}: {', '.join(map(str, found))}")
    return found[0]
