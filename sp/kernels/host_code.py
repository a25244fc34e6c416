"""The Python that plans a kernel's launches, in a form which changes when a launch may and not when prose does."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
ROOMS = ("kernels/specs", "ops")  # where kernels are declared, and where they are launched
RUNTIME = ("kernels/launch.py", "kernels/tensor_map.py")  # what every launch goes through
SILENT = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)
"""Statements that plan nothing; what is imported counts by itself."""
UNSEEN = ("annotation", "returns", "ctx", "kind", "type_comment")  # parts of statements that do nothing when run
FACTS = ("date", "gpu", "kernel_hash")  # of a table of measurements: says where it comes from, not what is in it


class Module(NamedTuple):
    """One file. `imports`: of `ROOMS` and `RUNTIME`, at any depth of the file; `strings`: names and texts that stand in
    it; `digests`: of what each of its statements does when run, and of the tables it reads."""

    imports: frozenset[Path]
    strings: frozenset[str]
    digests: frozenset[bytes]


def host_digest(source: str, package: Path = PACKAGE) -> bytes:
    """Digest of `host_modules` and of the tables they read. Docstrings, comments, annotations, imports, assertions and
    messages of errors do not count, nor in which of these files a statement stands, nor behind which other; nor do the
    date, card and hash that a table of measurements carries beside its numbers."""
    found = _modules(package)
    parts = {digest for path in host_modules(source, package) for digest in found[path].digests}
    return hashlib.sha256(b"".join(sorted(parts))).digest()


@cache
def host_modules(source: str, package: Path = PACKAGE) -> tuple[Path, ...]:
    """Files that decide how a kernel source is launched, sorted. Those are `RUNTIME`, and of `ROOMS` the files that
    name it (its declaration), the files that import such a one (which launch it), whatever all these import, at any
    remove, and in the rooms of the launching ones the files that import them, at any remove, or that launch nothing:
    they choose between kernels and prepare what is launched. `source`: file name, e.g. ``"gemv.cu"``; one that nothing
    names has no host code.

    >>> {"dispatch.py", "gemv.py", "launch.py"} <= {path.name for path in host_modules("gemv.cu")}
    True
    """
    found = _modules(package)
    naming = {path for path, module in found.items() if source in module.strings}
    launching = _launching(found, naming, package)
    rooms = {path.parent for path in launching if path.parent != package / "ops"}
    needed = _closure(naming | launching, lambda path: found[path].imports)
    importing = {path: {p for p, m in found.items() if path in m.imports and p.parent in rooms} for path in found}
    every = {path for path, module in found.items() if any(text.endswith(".cu") for text in module.strings)}
    others = {path for path in found if path.parent in rooms} - _launching(found, every, package)
    always = {package / name for name in RUNTIME} if naming else set()
    return tuple(sorted(always | needed | others | _closure(launching, lambda path: importing[path])))


def _launching(found: dict[Path, Module], naming: set[Path], package: Path) -> set[Path]:
    """Operations that name a source, or import a file that does."""
    using = {path for path, module in found.items() if module.imports & naming} | naming
    return {path for path in using if path.is_relative_to(package / "ops")}


def forget_host_code() -> None:
    """Read the files again next time, since one has been written."""
    host_modules.cache_clear()
    _modules.cache_clear()


def _closure(start: set[Path], following: Callable[[Path], frozenset[Path] | set[Path]]) -> set[Path]:
    found, left = set(start), list(start)
    while left:
        new = following(left.pop()) - found
        found |= new
        left += new
    return found


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
    """What a file imports, the strings in it, and digests of its statements; kept by its text, whoever holds it."""
    tree = ast.parse(text)
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    statements = [tuple(_words(node)) for node in tree.body if not isinstance(node, SILENT) and not _is_prose(node)]
    strings = {text for words in statements for kind, text in words if kind == "str"}
    texts = ("\0".join(text for _, text in words) for words in statements)
    return frozenset(imports), frozenset(strings), frozenset(hashlib.sha256(text.encode()).digest() for text in texts)


def _words(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Kinds and texts of a tree's nodes, in order; the same by every version of Python, whose later ones add fields."""
    yield "node", type(node).__name__
    if isinstance(node, ast.JoinedStr):  # how its texts are cut is the parser's affair
        yield "str", "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        for part in node.values:
            yield from _words(part) if isinstance(part, ast.FormattedValue) else ()
        return
    for name, value in ast.iter_fields(node):
        if name in UNSEEN:
            continue
        items = value if isinstance(value, list) else [value]
        items = [item for item in items if item is not None and not isinstance(item, SILENT) and not _is_prose(item)]
        if items:
            yield "field", name
        for item in items:
            if isinstance(item, ast.AST):
                yield from _words(item)
            else:
                yield ("str", item) if isinstance(item, str) else ("value", repr(item))
    yield "end", ""


def _is_prose(node: object) -> bool:
    """A docstring, of whatever it stands below."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
