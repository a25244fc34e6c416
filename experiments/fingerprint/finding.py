"""Names of `sp` found wherever they are defined, and called by the names of their parameters.

So one script runs on commits whose files lie elsewhere. Nothing here is imported by `sp`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import sp

ROOT = Path(sp.__file__).parent
RENAMED: dict[str, str] = json.loads(Path(__file__).with_name("renamed.json").read_text(encoding="utf-8"))
"""Names that are others on later commits."""
OTHERS = RENAMED | {later: name for name, later in RENAMED.items()}
DEFINED = re.compile(r"^(?:def|class) (\w+)|^(\w+)(?:\s*:[^=\n]+)?\s*=[^=]", re.MULTILINE)


@cache
def defined() -> Mapping[str, tuple[str, ...]]:
    """Modules that define each top-level name."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(("sp", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for function, value in DEFINED.findall(path.read_text(encoding="utf-8")):
            known = found.setdefault(function or value, [])
            if module not in known:
                known.append(module)
    return {name: tuple(modules) for name, modules in found.items()}


def find(name: str, within: str = "") -> Any:
    """The thing of that name; `within` is a part of its module's name, where several define one.

    Raises
    ------
    LookupError
        Where no module, or more than one, defines it.
    """
    name = name if known(name) else OTHERS.get(name, name)
    modules = [module for module in defined().get(name, ()) if f".{within}" in module or within in module.split(".")]
    if len(modules) != 1:
        raise LookupError(f"{name!r} within {within!r} is defined by {modules or 'no module'}")
    return getattr(importlib.import_module(modules[0]), name)


def known(name: str) -> bool:
    """Whether a module defines the name."""
    return name in defined()


def method(owner: Any, name: str) -> Callable[..., Any]:
    """A method, by whichever of its names it has."""
    found: Callable[..., Any] = getattr(owner, name) if hasattr(owner, name) else getattr(owner, OTHERS[name])
    return found


def call(function: Callable[..., Any], /, **values: Any) -> Any:
    """Call a function with those of `values` that it has parameters for, which must be all that it needs."""
    parameters = inspect.signature(function).parameters
    given = {name: value for name, value in values.items() if name in parameters}
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD,)]
    if missing := [name for name in needed if name not in given]:
        raise LookupError(f"{function.__qualname__} also needs {', '.join(missing)}")
    positional = [given.pop(p.name) for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    return function(*positional, **given)
