"""Arrays that kernels cache are never allocated in a workspace, whatever runs first."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from sp.kernels import kept

OPS = Path(kept.__file__).parents[1] / "ops"


@pytest.fixture
def present(monkeypatch) -> list[str]:
    """Allocators by name, the present one last."""
    stack = ["pool"]

    @contextmanager
    def using_allocator(allocator):
        stack.append(allocator)
        yield
        stack.pop()

    cuda = SimpleNamespace(using_allocator=using_allocator, get_allocator=lambda: stack[-1])
    monkeypatch.setattr(kept, "import_cupy", lambda: SimpleNamespace(cuda=cuda))
    return stack


def test_cached_arrays_are_allocated_outside_of_the_workspace(present) -> None:
    made = []

    @kept.cache
    def counters(device: int) -> str:
        made.append(device)
        return present[-1]

    with kept.use_workspace("lane"), kept.use_workspace("graph"):
        assert present[-1] == "graph"
        assert counters(0) == "pool"
        assert present[-1] == "graph"
        assert counters(0) == "pool"
    assert present == ["pool"]
    assert counters(1) == "pool"
    assert made == [0, 1]


def test_a_budget_that_memory_is_taken_from_counts_what_is_kept(present) -> None:
    counters = kept.cache(lambda device: present[-1])
    present.append("budget")
    with kept.use_workspace("graph"):
        assert counters(0) == "budget"


def test_lending_ends_with_an_error(present) -> None:
    with pytest.raises(ValueError, match="full"), kept.use_workspace("graph"):
        raise ValueError("full")
    present.append("budget")
    with kept.use_workspace("graph"):
        assert kept.cache(lambda: present[-1])() == "budget"


@pytest.mark.parametrize("path", sorted(OPS.rglob("*.py")), ids=lambda path: path.relative_to(OPS).as_posix())
def test_operations_keep_arrays_in_no_other_way(path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = any(isinstance(node, ast.ImportFrom) and node.module == "sp.kernels.kept" for node in ast.walk(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        ways = {ast.unparse(way).partition("(")[0] for way in node.decorator_list}
        arrays = any(isinstance(part, ast.Name) and part.id in ("import_cupy", "cupy") for part in ast.walk(node))
        if arrays and ways & {"cache", "lru_cache", "cached_property", "functools.cache"}:
            assert ours, f"{path.name}: {node.name} keeps an array; use sp.kernels.kept"
            assert ways == {"cache"}, f"{path.name}: {node.name} keeps an array; use sp.kernels.kept"
