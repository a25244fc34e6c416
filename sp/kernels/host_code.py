"""The Python that plans a kernel's launches, in a form that changes if a launch may change, but not with prose."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
ROOMS = ("kernels/specs", "ops")  # folders in which kernels are declared and launched
RUNTIME = ("kernels/launch.py", "kernels/tensor_map.py")  # code that every launch runs
SILENT = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)
"""Statements without influence on launches; imported modules count by themselves."""
UNSEEN = ("annotation", "returns", "ctx", "kind", "type_comment")  # parts of statements without effect at run time
FACTS = ("date", "gpu", "kernel_hash")  # keys of a table of measurements that record its origin, not its content


class Module(NamedTuple):
    """One file. `imports`: its imports from `ROOMS` and `RUNTIME`, at any depth; `strings`: names and texts in it;
    `digests`: digests of the run-time behaviour of its statements, and of the tables that it reads."""

    imports: frozenset[Path]
    strings: frozenset[str]
    digests: frozenset[bytes]


def host_digest(source: str, package: Path = PACKAGE) -> bytes:
    """Digest `host_modules` and the tables they read. Docstrings, comments, annotations, imports, assertions and error
    messages do not count, nor does the file or the order of statements, nor the date, GPU and hash that a table of
    measurements has next to its numbers."""
    modules = _modules(package)
    parts = {digest for path in host_modules(source, package) for digest in modules[path].digests}
    return hashlib.sha256(b"".join(sorted(parts))).digest()


@cache
def host_modules(source: str, package: Path = PACKAGE) -> tuple[Path, ...]:
    """Return the files that decide how a kernel source is launched, sorted. These are `RUNTIME`, and of `ROOMS` the
    files that name it (its declaration), the files that import such a file (which launch it), all direct and indirect
    imports of these, and, in the folders of the launching files, those that import them directly or indirectly or that
    launch nothing: they choose between kernels and prepare the operands. `source`: file name, e.g. ``"gemv.cu"``; a
    source that nothing names has no host code.

    >>> {"dispatch.py", "gemv.py", "launch.py"} <= {path.name for path in host_modules("gemv.cu")}
    True
    """
    modules = _modules(package)
    naming = {path for path, module in modules.items() if source in module.strings}
    launching = _launching(modules, naming, package)
    rooms = {path.parent for path in launching if path.parent != package / "ops"}
    needed = _closure(naming | launching, lambda path: modules[path].imports)
    importing = {path: {p for p, m in modules.items() if path in m.imports and p.parent in rooms} for path in modules}
    every = {path for path, module in modules.items() if any(text.endswith(".cu") for text in module.strings)}
    others = {path for path in modules if path.parent in rooms} - _launching(modules, every, package)
    always = {package / name for name in RUNTIME} if naming else set()
    return tuple(sorted(always | needed | others | _closure(launching, lambda path: importing[path])))


def _launching(modules: dict[Path, Module], naming: set[Path], package: Path) -> set[Path]:
    """Return the operations that name a source, or import a file that does."""
    using = {path for path, module in modules.items() if module.imports & naming} | naming
    return {path for path in using if path.is_relative_to(package / "ops")}


def forget_host_code() -> None:
    """Clear the caches after a file has been written."""
    host_modules.cache_clear()
    _modules.cache_clear()


def _closure(start: set[Path], following: Callable[[Path], frozenset[Path] | set[Path]]) -> set[Path]:
    reached, pending = set(start), list(start)
    while pending:
        new = following(pending.pop()) - reached
        reached |= new
        pending += new
    return reached


@cache
def _modules(package: Path) -> dict[Path, Module]:
    files = [path for room in ROOMS for path in (package / room).rglob("*.py")]
    files += [package / name for name in RUNTIME]
    names = {_dotted(path, package): path for path in files}
    return {path: _read(path, names) for path in files}


def _dotted(path: Path, package: Path) -> str:
    parts = ("sp", *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(path: Path, names: dict[str, Path]) -> Module:
    imports, strings, statements = _parsed(path.read_text(encoding="utf-8"))
    tables = [table for table in path.parent.glob("*.json") if table.name in strings]
    for table in tables:
        values = {k: v for k, v in json.loads(table.read_text(encoding="utf-8")).items() if k not in FACTS}
        statements |= {hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()}
    own = frozenset(names[name] for name in imports if name in names and names[name] != path)
    return Module(own, strings, statements)


@cache
def _parsed(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[bytes]]:
    """Return the imports and strings of a file and digests of its statements; cached by the text."""
    tree = ast.parse(text)
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    statements = [tuple(_words(node)) for node in tree.body if not isinstance(node, SILENT) and not is_prose(node)]
    strings = {text for words in statements for kind, text in words if kind == "str"}
    texts = ("\0".join(text for _, text in words) for words in statements)
    return frozenset(imports), frozenset(strings), frozenset(hashlib.sha256(text.encode()).digest() for text in texts)


def _words(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the kinds and texts of a tree's nodes, in order; equal in every version of Python, of which later ones add
    fields."""
    yield "node", type(node).__name__
    if isinstance(node, ast.JoinedStr):  # versions of Python split its constant parts differently
        yield "str", "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        for part in node.values:
            yield from _words(part) if isinstance(part, ast.FormattedValue) else ()
        return
    for name, value in ast.iter_fields(node):
        if name in UNSEEN:
            continue
        items = value if isinstance(value, list) else [value]
        items = [item for item in items if item is not None and not isinstance(item, SILENT) and not is_prose(item)]
        if items:
            yield "field", name
        for item in items:
            if isinstance(item, ast.AST):
                yield from _words(item)
            else:
                yield ("str", item) if isinstance(item, str) else ("value", repr(item))
    yield "end", ""


def is_prose(node: object) -> bool:
    """Return True for a string that is a statement, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
