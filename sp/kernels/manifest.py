"""Every declared kernel, by name. A new family is one module of `sp.kernels.declared` and one line here."""

from __future__ import annotations

from types import ModuleType

from sp.errors import unknown_name
from sp.kernels.declared import (
    attention_decode,
    attention_portable,
    attention_rows,
    attention_sm90,
    attention_split,
    delta,
    delta_tree,
    draw_tokens,
    elementwise,
    feature_rows,
    flashprefill,
    gemm_few,
    gemm_few_sm90,
    gemm_portable,
    gemm_sm90,
    gemv,
    importance,
    packed,
    sample,
    selftest,
    sequence,
)
from sp.kernels.launch import Kernel

FAMILIES: tuple[ModuleType, ...] = (
    attention_decode,
    attention_portable,
    attention_rows,
    attention_sm90,
    attention_split,
    delta,
    delta_tree,
    draw_tokens,
    elementwise,
    feature_rows,
    flashprefill,
    gemm_few,
    gemm_few_sm90,
    gemm_portable,
    gemm_sm90,
    gemv,
    importance,
    packed,
    sample,
    selftest,
    sequence,
)


def kernels(family: str | None = None) -> dict[str, Kernel]:
    """Declared kernels of one family or of all, by entry name, in the order of the families."""
    found: dict[str, Kernel] = {}
    if family is not None and family not in map(family_name, FAMILIES):
        raise unknown_name("family of kernels", family, map(family_name, FAMILIES))
    for module in FAMILIES:
        for value in vars(module).values() if family in (None, family_name(module)) else ():
            if isinstance(value, Kernel) and found.setdefault(value.entry, value) is not value:
                raise ValueError(f"two kernels are called {value.entry}")
    return found


def family_name(module: ModuleType) -> str:
    """A family is called like the module that declares it."""
    return module.__name__.rpartition(".")[2]


def family_of(kernel: Kernel) -> str:
    """Name of the family that declares a kernel."""
    for module in FAMILIES:
        if any(value is kernel for value in vars(module).values()):
            return family_name(module)
    raise ValueError(f"{kernel.entry} is not in the manifest")
