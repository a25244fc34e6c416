"""The house keeps its direction of imports, and importing it touches no device."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "sp"
ORDER = [
    {"__init__"},
    {"errors", "arrays"},
    {"config", "trace"},
    {"quant"},
    {"gguf"},
    {"kernels"},
    {"ops"},
    {"models"},
    {"prompt"},
    {"scoring"},
    {"selection"},
    {"decode"},
    {"pipeline"},
    {"evals", "bench", "serve"},
    {"studies"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    """The top-level part of `sp` a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of `sp` that a file imports, at any depth of the file."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import at line {node.lineno}"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "sp" else [module]
        rooms |= {name.split(".")[1] for name in names if name.startswith("sp.")}
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_from_the_left(path: Path) -> None:
    here = room(path)
    assert here in RANK, f"{path} lies in a room the order does not name"
    if here == "__init__":
        return
    for other in imported_rooms(path) - {"__version__"}:
        assert other == here or RANK[other] < RANK[here], f"{path}: {here} may not import {other}"


def test_import_touches_no_device_and_no_framework() -> None:
    code = (
        "import sp, sys; "
        "bad = {'cupy', 'torch', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'import sp pulled in {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
