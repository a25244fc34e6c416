"""Every kernel spec, by name. A new family is one module of `sp.kernels.specs`."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from sp.config import import_modules
from sp.errors import unknown_name
from sp.kernels.launch import KernelSpec


@cache
def families() -> tuple[ModuleType, ...]:
    """The modules that hold specs, sorted by name; those that only help them are left out."""
    modules = sorted(import_modules("sp.kernels.specs"), key=family_name)
    return tuple(each for each in modules if any(isinstance(value, KernelSpec) for value in vars(each).values()))


def kernels(family: str | None = None) -> dict[str, KernelSpec]:
    """Kernels of one family or of all, by entry name, in the order of the families."""
    found: dict[str, KernelSpec] = {}
    if family is not None and family not in map(family_name, families()):
        raise unknown_name("family of kernels", family, map(family_name, families()))
    for module in families():
        for value in vars(module).values() if family in (None, family_name(module)) else ():
            if isinstance(value, KernelSpec) and found.setdefault(value.entry, value) is not value:
                raise ValueError(f"two kernels are called {value.entry}")
    return found


def family_name(module: ModuleType) -> str:
    """A family is called like the module of its specs."""
    return module.__name__.rpartition(".")[2]


def family_of(kernel: KernelSpec) -> str:
    """Name of the family that a kernel belongs to."""
    for module in families():
        if any(value is kernel for value in vars(module).values()):
            return family_name(module)
    raise ValueError(f"{kernel.entry} is not in the manifest")
