"""Every declared kernel, by name. A new family is one module of `sp.kernels.declared` and one line here."""

from __future__ import annotations

from types import ModuleType

from sp.kernels.declared import selftest
from sp.kernels.launch import Kernel

FAMILIES: tuple[ModuleType, ...] = (selftest,)


def kernels() -> dict[str, Kernel]:
    """Declared kernels by entry name, in the order of the families."""
    found: dict[str, Kernel] = {}
    for family in FAMILIES:
        for value in vars(family).values():
            if isinstance(value, Kernel) and found.setdefault(value.entry, value) is not value:
                raise ValueError(f"two kernels are called {value.entry}")
    return found


def family_of(kernel: Kernel) -> str:
    """Name of the module that declares a kernel."""
    for family in FAMILIES:
        if any(value is kernel for value in vars(family).values()):
            return family.__name__.rpartition(".")[2]
    raise ValueError(f"{kernel.entry} is not in the manifest")
