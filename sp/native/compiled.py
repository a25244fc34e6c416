"""compiled: functions of a module in memory, for the very CPU that runs this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir

_ONE = Lock()  # LLVM compiles for one thread at a time


@dataclass(frozen=True)
class Compiled:
    """Addresses of functions, by name; they can be called until the process ends, whoever holds them."""

    addresses: dict[str, int]

    @cached_property
    def address(self) -> int:
        """Of the only function."""
        (found,) = self.addresses.values()
        return found


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


@cache
def has_halves() -> bool:
    """Whether this CPU turns float16 into float32 by itself; without it code would call what nobody has."""
    return machine() in ("aarch64", "arm64") or bool(llvm.get_host_cpu_features().get("f16c"))


def machine() -> str:
    """What LLVM calls this kind of CPU, such as x86_64."""
    return str(llvm.get_process_triple()).partition("-")[0]


def compiled(write: Callable[[ir.Module], None]) -> Compiled:
    """What `write` puts into a module, compiled; it takes some 20 ms.

    >>> from sp.native.code import Code
    >>> import ctypes
    >>> def write(module: ir.Module) -> None:
    ...     code = Code(module, "twice", 1, result=True)
    ...     code.end(code.arguments[0] * 2)
    >>> made = compiled(write)
    >>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(made.addresses["twice"])(21)
    42
    """
    module = ir.Module()
    write(module)
    names = [one.name for one in module.functions if not one.is_declaration]
    with _ONE:
        target, features = _target(), llvm.get_host_cpu_features().flatten()
        host = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
        module.triple, module.data_layout = host.triple, str(host.target_data)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_unrolling = False  # loops over vectors are as long as they should be
        passes = llvm.create_pass_builder(host, options)
        passes.getModulePassManager().run(parsed, passes)
        engine = llvm.create_mcjit_compiler(parsed, host)
        engine.finalize_object()
        made = Compiled({name: engine.get_function_address(name) for name in names})
        engine.detach()  # code stays in memory: two threads may compile it at once, and both hold addresses
        return made
