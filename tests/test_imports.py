"""The house keeps its direction of imports, rooms inside rooms included, and importing it touches no device."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

from sp.kernels import packings

ROOT = Path(__file__).parents[1] / "sp"
ORDER = [
    {"__init__"},
    {"errors", "arrays", "values"},
    {"keywords"},
    {"cluster", "columns", "config", "folders", "json_lines", "plugins", "trace"},
    {"named"},
    {"structure"},
    {"hub"},
    {"quant"},
    {"gguf"},
    {"kernels"},
    {"parallel"},
    {"native"},
    {"ops"},
    {"models"},
    {"planning"},
    {"chat"},
    {"prompt"},
    {"scoring"},
    {"selection"},
    {"decode"},
    {"session"},
    {"page"},
    {"evals", "bench", "serve"},
    {"front"},
    {"studies"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
INSIDE = {  # rooms inside a room, each of which imports only from those before it
    "gguf": ("tokens",),
    "kernels": ("specs", "tools"),
    "ops": ("byte_rows", "matmul", "attention", "sparse", "delta", "experts", "sampling"),
    "models": ("cache", "file", "layer", "families", "network", "device", "run", "shards", "drafts", "synthetic"),
    "evals": ("text", "tasks", "formats", "transcripts", "turns", "natural"),
    "scoring": ("attention", "calibration", "trained"),
    "studies": ("sweep", "tables", "plots", "pages", "board"),
}
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FILES = sorted(ROOT.rglob("*.py"))
MOST_FILES, MOST_LINES = 20, 450


def room(path: Path) -> str:
    """The top-level part of `sp` a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    """Its dotted name."""
    parts = ("sp", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules of `sp` that a file imports, at any depth of the file, those for type checkers among them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import at line {node.lineno}"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return frozenset(name for name in found if name in MODULES and name != "sp")


@pytest.mark.parametrize("here", sorted({room(path) for path in FILES}))
def test_imports_only_from_the_left(here: str) -> None:
    assert here in RANK, f"{here} is a room that the order does not name"
    wrong = []
    for path in (path for path in FILES if room(path) == here != "__init__"):
        for name in imported(path):
            other = name.split(".")[1]
            if other != here and RANK[other] >= RANK[here]:
                wrong.append(f"{path}: {here} may not import {name}")
            parts, there = path.relative_to(ROOT).parts, name.split(".")
            order = INSIDE.get(here, ())
            if (
                other == here
                and parts[1] in order
                and there[2] in order
                and order.index(there[2]) > order.index(parts[1])
            ):
                wrong.append(f"{path}: {parts[1]} may not import {name}")
    assert not wrong, "\n".join(wrong)


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan 1972)."""
    order, lowest, stack, found = dict[str, int](), dict[str, int](), list[str](), list[list[str]]()

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    return [component for component in found if len(component) > 1]


def test_circles_are_found() -> None:
    assert circles({"a": "b", "b": "cd", "c": "a", "d": "e", "e": "d", "f": "a"}) == [["d", "e"], ["a", "b", "c"]]


def test_no_circle_of_files() -> None:
    """Imports inside functions count too, and those for type checkers."""
    graph = {name: sorted(imported(path) - {name}) for name, path in MODULES.items() if name != "sp"}
    assert circles(graph) == []


@pytest.mark.parametrize("here", sorted({room(path) for path in FILES if len(path.relative_to(ROOT).parts) > 1}))
def test_no_circle_of_rooms(here: str) -> None:
    """The files that lie in a room itself and the rooms inside it, each as one."""

    def node(name: str) -> str:
        parts = name.split(".")
        return ".".join(parts[:3]) if (ROOT / here / parts[2]).is_dir() else name

    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if name.startswith(f"sp.{here}."):
            inside = {other for other in imported(path) if other.startswith(f"sp.{here}.")}
            graph.setdefault(node(name), set()).update({node(other) for other in inside} - {node(name)})
    assert circles(graph) == []


def test_rooms_inside_rooms_are_all_in_the_order() -> None:
    for here, order in INSIDE.items():
        inside = {path.name for path in (ROOT / here).iterdir() if (path / "__init__.py").exists()}
        assert inside == set(order)


FOLDERS = sorted(path for path in [ROOT, *ROOT.rglob("*")] if path.is_dir() and path.name != "__pycache__")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT.parent)))
def test_a_room_holds_few_files_of_one_idea(folder: Path) -> None:
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix in (".py", ".cu", ".cuh")]
    assert len(files) <= MOST_FILES, f"{folder} holds {len(files)} files"
    for path in files:
        lines = len(path.read_text().splitlines())
        assert lines <= MOST_LINES, f"{path} has {lines} lines"


CUDA_ORDER = (
    "common",
    "quant",
    "gemm",
    "attention",
    "sparse",
    "delta",
    "experts",
    "sampling",
    "elementwise",
    "selftest",
)


def test_cuda_rooms_include_only_from_common_and_from_the_left() -> None:
    cuda = ROOT / "kernels" / "cuda"
    home = {path.name: path.relative_to(cuda).parts[0] for path in cuda.rglob("*.cu*")} | {packings.NAME: "quant"}
    for path in sorted(cuda.rglob("*.cu*")):
        for line in path.read_text().splitlines():
            if line.strip().startswith('#include "'):
                there, here = home[line.split('"')[1]], home[path.name]
                assert CUDA_ORDER.index(there) <= CUDA_ORDER.index(here), f"{path}: {line.strip()} lies in {there}"


def test_import_touches_no_device_and_no_framework() -> None:
    code = (
        "import sp, sys; "
        "bad = {'cupy', 'torch', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'import sp pulled in {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
