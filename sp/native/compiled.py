"""Compile the functions of an LLVM module for the CPU that runs this; machine code is kept from process to process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any

import llvmlite
from llvmlite import binding as llvm
from llvmlite import ir

from sp.folders import cache_folder
from sp.trace import write_atomic

_ONE = Lock()  # LLVM compiles for one thread at a time
SCHEMA = "sp-native/1"  # to be changed with anything below that changes machine code


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
    """Compile the functions that `write` puts into a module; it takes some 100 ms, and a fifth of that where machine
    code of the same module is kept in the folder ``native`` of `cache_folder`.

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
        target, cpu, features = _target(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        host = target.create_target_machine(cpu=cpu, features=features, opt=3)
        module.triple, module.data_layout = host.triple, str(host.target_data)
        text = str(module)
        key = "\0".join((SCHEMA, llvmlite.__version__, str(llvm.llvm_version_info), cpu, features, text))
        machine_code = _kept(hashlib.sha256(key.encode()).hexdigest()[:24], lambda: _machine_code(text, host))
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host)
        engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        functions = CompiledModule({name: engine.get_function_address(name) for name in names})
        engine.detach()  # the code stays in memory: two threads may compile it at once, and both hold addresses
        return functions


def _machine_code(text: str, host: Any) -> bytes:
    """Return the object file of a module."""
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = False  # bodies of loops over vectors have the right length already
    passes = llvm.create_pass_builder(host, options)
    passes.getModulePassManager().run(parsed, passes)
    code: bytes = host.emit_object(parsed)
    return code


def _kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return what a file of the cache holds, which begins with its SHA-256, or else make it and write the file. Where
    no file can be written, each process compiles anew."""
    path, raw = None, b""
    with suppress(OSError, RuntimeError):  # nothing is there, or there is no home folder
        path = cache_folder() / "native" / f"{name}.o"
        raw = path.read_bytes()
    if hashlib.sha256(raw[32:]).digest() == raw[:32]:  # LLVM would end the process over a damaged one
        return raw[32:]
    code = make()
    if path is not None:
        with suppress(OSError):
            write_atomic(path, hashlib.sha256(code).digest() + code)
    return code
