"""Every kernel spec by name. A module of `sp.kernels.specs` is a family of kernels."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from sp.config import import_modules
from sp.errors import unknown_name
from sp.kernels.launch import KernelSpec


@cache
def families() -> tuple[ModuleType, ...]:
    """Return the modules that contain specs, sorted by name, without helper modules."""
    modules = sorted(import_modules("sp.kernels.specs"), key=family_name)
    return tuple(module for module in modules if any(isinstance(value, KernelSpec) for value in vars(module).values()))


def kernels(family: str | None = None) -> dict[str, KernelSpec]:
    """Return the kernels of one family or of all, by entry name, in the order of the families."""
    specs: dict[str, KernelSpec] = {}
    if family is not None and family not in map(family_name, families()):
        raise unknown_name("family of kernels", family, map(family_name, families()))
    for module in families():
        for value in vars(module).values() if family in (None, family_name(module)) else ():
            if isinstance(value, KernelSpec) and specs.setdefault(value.entry, value) is not value:
                raise ValueError(f"two kernels are called {value.entry}")
    return specs


def family_name(module: ModuleType) -> str:
    """Return the name of a family, that of its module."""
    return module.__name__.rpartition(".")[2]


def family_of(kernel: KernelSpec) -> str:
    """Return the name of the family of a kernel."""
    for module in families():
        if any(value is kernel for value in vars(module).values()):
            return family_name(module)
    raise ValueError(f"{kernel.entry} is not in the manifest")
