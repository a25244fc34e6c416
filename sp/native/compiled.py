"""Compile the functions of an LLVM module in memory, for the CPU that runs this."""

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
class CompiledModule:
    """Addresses of compiled functions by name; they can be called until the process ends, even after this object is
    gone."""

    addresses: dict[str, int]

    @cached_property
    def address(self) -> int:
        """The address of the only function."""
        (address,) = self.addresses.values()
        return address


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


@cache
def has_halves() -> bool:
    """Return True if this CPU converts float16 in hardware; without it LLVM calls a library function that is not
    linked."""
    return machine() in ("aarch64", "arm64") or bool(llvm.get_host_cpu_features().get("f16c"))


def machine() -> str:
    """Return LLVM's name of the CPU architecture, such as x86_64."""
    return str(llvm.get_process_triple()).partition("-")[0]


def compile_module(write: Callable[[ir.Module], None]) -> CompiledModule:
    """Compile the functions that `write` puts into a module; it takes some 20 ms.

    >>> from sp.native.code import FunctionBuilder
    >>> import ctypes
    >>> def write(module: ir.Module) -> None:
    ...     code = FunctionBuilder(module, "twice", 1, result=True)
    ...     code.end(code.arguments[0] * 2)
    >>> functions = compile_module(write)
    >>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(functions.addresses["twice"])(21)
    42
    """
    module = ir.Module()
    write(module)
    names = [function.name for function in module.functions if not function.is_declaration]
    with _ONE:
        target, features = _target(), llvm.get_host_cpu_features().flatten()
        host = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
        module.triple, module.data_layout = host.triple, str(host.target_data)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_unrolling = False  # bodies of loops over vectors have the right length already
        passes = llvm.create_pass_builder(host, options)
        passes.getModulePassManager().run(parsed, passes)
        engine = llvm.create_mcjit_compiler(parsed, host)
        engine.finalize_object()
        functions = CompiledModule({name: engine.get_function_address(name) for name in names})
        engine.detach()  # the code stays in memory: two threads may compile it at once, and both hold addresses
        return functions
