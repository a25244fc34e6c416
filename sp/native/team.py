"""Team: threads that do a list of tasks together, without Python's lock; they spin while they wait for the next list.

A decoded token is a few hundred tasks of 10 to 100 µs, too short for handing over between Python's threads. The caller
always works, and does the parts that no other thread takes: a late or absent thread costs nothing but its help.
The split into parts depends on the number of items alone and every item is done by one thread, so that results do not
depend on the number of threads."""

from __future__ import annotations

import atexit
import ctypes
import struct
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any

import numpy as np
from llvmlite import ir

from sp.native.code import I64, FunctionBuilder, Value
from sp.native.compiled import CompiledModule, compile_module, machine
from sp.native.products import FIELDS, HEAD

WORD, DONE, TASKS, COUNT, AWAKE, STOP = (16 * line for line in range(6))
"""Offsets on the board, each in a cache line of its own. `WORD` combines the number of the list (32 bits), its parts
(16) and how many of them are claimed (16), so that no thread claims a part of another list than it looked at."""
PATIENCE = 6_000  # polls of the board, some 25 ns each, before a thread sleeps: Python needs less between two lists
PARTS_A_THREAD = 2
_Char = ctypes.c_char
NOTHING = (0,) * (FIELDS - HEAD)

Task = tuple[int, ...]  # see `task`


def task(kernel: int, items: int, *values: int, beside: int = 1, alone: bool = False) -> Task:
    """Return a task: the kernel's address, the number of items, and the fields that the kernel needs. `beside`: for the
    first of several independent tasks, their number; `alone`: True if all of them are too short to share."""
    return (kernel, items, beside, alone, *values, *NOTHING[len(values) :])


def address(array: Any) -> int:
    """Return the address of a C-contiguous array, which has to live as long as anyone reads it."""
    try:
        return ctypes.addressof(_Char.from_buffer(array))
    except (TypeError, ValueError):  # read-only or empty; this way takes five times as long
        pointer: int = array.ctypes.data
        return pointer


@lru_cache(maxsize=64)
def bits(value: float) -> int:
    """Return the bits of a float32, as a field of a task."""
    return int(np.float32(value).view(np.int32))


class Team:
    """A team of `threads` threads, including the caller."""

    def __init__(self, threads: int) -> None:
        self._code = _code()
        self._board = np.zeros(128, np.int64)
        self._address = self._board.ctypes.data
        self._awake = ctypes.c_int64.from_address(self._address + 8 * AWAKE)
        word = ctypes.c_int64
        self._do = ctypes.CFUNCTYPE(None, word, ctypes.c_char_p, word, word)(self._code.addresses["do"])
        self._help = ctypes.CFUNCTYPE(None, word, word)(self._code.addresses["help"])
        self._mine, self._threads = threading.Lock(), threads
        self._bells = [threading.Lock() for _ in range(threads - 1)]
        for bell in self._bells:
            bell.acquire()
        helpers = [threading.Thread(target=self._wait, args=(bell,), daemon=True) for bell in self._bells]
        for helper in helpers:
            helper.start()
        self._helpers = helpers
        if helpers:
            atexit.register(self._end)

    def do(self, tasks: Sequence[Task]) -> None:
        """Do tasks in order; independent ones, see `task`, run concurrently."""
        count = len(tasks)
        packed = struct.pack(f"{FIELDS * count}q", *chain.from_iterable(tasks))
        alone = self._threads == 1 or all(entry[3] for entry in tasks)
        if alone or not self._mine.acquire(blocking=False):  # another thread has the helpers
            self._do(self._address, packed, count, 1)
            return
        try:
            if self._awake.value < self._threads - 1:
                for bell in self._bells:
                    if bell.locked():
                        bell.release()
            self._do(self._address, packed, count, PARTS_A_THREAD * self._threads)
        finally:
            self._mine.release()

    def _wait(self, bell: Any) -> None:
        while True:
            bell.acquire()
            if self._board[STOP]:
                return
            self._help(self._address, PATIENCE)

    def _end(self) -> None:
        """Stop the helpers: no thread may be in compiled code once the interpreter frees it."""
        self._board[STOP] = 1
        for bell, helper in zip(self._bells, self._helpers, strict=True):
            if bell.locked():
                bell.release()
            helper.join(1.0)


@cache
def _code() -> CompiledModule:
    def write(module: ir.Module) -> None:
        _write_part(module)
        _write_try(module)
        _write_do(module)
        _write_help(module)

    return compile_module(write)


def _call(code: FunctionBuilder, name: str, *values: Value) -> Value:
    return Value(code, code.builder.call(code.module.globals[name], [value.raw for value in values]))


def _write_part(module: ir.Module) -> None:
    """Write ``part(tasks, count, part, parts)``: do one of `parts` parts of each of `count` tasks."""
    code = FunctionBuilder(module, "part", 4)
    tasks, count, part, parts = code.arguments
    with code.counting(0, count) as index:
        address = tasks + index * (8 * FIELDS)
        items = code.load(I64, address + 8)
        first, last = items * part // parts, items * (part + 1) // parts
        with code.where(first.below(last)):
            code.run(code.load(I64, address), address, first, last)
    code.end()


def _write_try(module: ir.Module) -> None:
    """Write ``attempt(board)``: 1 if a part was claimed and done, else 0."""
    code = FunctionBuilder(module, "attempt", 1, result=True)
    (board,) = code.arguments
    build, succeeded = code.builder, code.variable(code.number(0))
    word = code.pointer(board + 8 * WORD, I64)
    seen = Value(code, build.load_atomic(word, "acquire", 8))
    parts, claimed = (seen >> 16) & 0xFFFF, seen & 0xFFFF
    with code.where(claimed.below(parts)):
        # Loaded before the part is claimed: as long as one is unclaimed they belong to this list.
        tasks, count = (code.load(I64, board + 8 * place) for place in (TASKS, COUNT))
        # If another thread claimed a part or the caller began a new list meanwhile, the word differs and the exchange
        # fails.
        swapped = build.cmpxchg(word, seen.raw, (seen + 1).raw, "acq_rel", "acquire")
        with code.where(Value(code, build.extract_value(swapped, 1))):
            _call(code, "part", tasks, count, claimed, parts)
            done = code.pointer(board + 8 * DONE, I64)
            build.atomic_rmw("add", done, ir.Constant(I64, 1), "release")
        succeeded.set(code.number(1))
    code.end(succeeded.value)


def _pause(code: FunctionBuilder) -> None:
    """Emit the hint that this thread spins, where the architecture has one."""
    if machine() == "x86_64":
        code.intrinsic("llvm.x86.sse2.pause", ir.VoidType(), ())


def _write_do(module: ir.Module) -> None:
    """Write ``do(board, tasks, count, parts)``: do all tasks; alone if `parts` is 1."""
    code = FunctionBuilder(module, "do", 4)
    board, tasks, count, parts = code.arguments
    next_task, build = code.variable(code.number(0)), code.builder
    with code.looping() as go_on:
        go_on(next_task.value.below(count))
        first = tasks + next_task.value * (8 * FIELDS)
        beside = code.load(I64, first + 16)
        alone = parts.same(1) | code.number(0).below(code.load(I64, first + 24))
        with build.if_else(alone.raw) as (yes, no):
            with yes:
                _call(code, "part", first, beside, code.number(0), code.number(1))
            with no:
                done, word = (code.pointer(board + 8 * place, I64) for place in (DONE, WORD))
                build.store_atomic(ir.Constant(I64, 0), done, "monotonic", 8)
                code.store(first, board + 8 * TASKS)
                code.store(beside, board + 8 * COUNT)
                seen = Value(code, build.load_atomic(word, "monotonic", 8))
                # The release publishes the fields of the board that were stored before it; `attempt` acquires them with
                # the word.
                build.store_atomic((((seen >> 32) + 1) << 32 | parts << 16).raw, word, "release", 8)
                with code.looping() as more:
                    more(code.number(0).below(_call(code, "attempt", board)))
                with code.looping() as wait:
                    wait(Value(code, build.load_atomic(done, "acquire", 8)).below(parts))
                    _pause(code)
        next_task.set(next_task.value + beside)
    code.end()


def _write_help(module: ir.Module) -> None:
    """Write ``help(board, patience)``: do parts as they appear, until `patience` polls in a row found none."""
    code = FunctionBuilder(module, "help", 2)
    board, patience = code.arguments
    idle, build = code.variable(code.number(0)), code.builder
    awake = code.pointer(board + 8 * AWAKE, I64)
    build.atomic_rmw("add", awake, ir.Constant(I64, 1), "acq_rel")
    with code.looping() as go_on:
        stop = Value(code, build.load_atomic(code.pointer(board + 8 * STOP, I64), "monotonic", 8))
        limit = code.chosen(stop.same(0), patience, code.number(0))
        go_on(idle.value.below(limit))
        worked = _call(code, "attempt", board)
        idle.set(code.chosen(worked.same(0), idle.value + 1, code.number(0)))
        _pause(code)
    build.atomic_rmw("sub", awake, ir.Constant(I64, 1), "acq_rel")
    code.end()
