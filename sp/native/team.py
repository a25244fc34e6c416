"""Team: threads that do a list of tasks together, without Python's lock; they wait for the next list without sleeping.

A decoded token is a few hundred tasks of 10 to 100 µs, which no handing over between Python's threads would pay for.
The caller always works, and takes whatever parts are left: a thread that comes late, or never, costs nothing but its
help. Parts are cut by the number of items alone and every item is done by one thread, so that results do not depend on
how many there are.
"""

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

from sp.native.code import I64, Code, Value
from sp.native.compiled import Compiled, compiled, machine
from sp.native.products import FIELDS, HEAD

WORD, DONE, TASKS, COUNT, AWAKE, STOP = (16 * line for line in range(6))
"""Places on the board, each in cache lines of its own. `WORD`: which list it is (32 bits), its parts (16) and how many
of them are taken (16), in one number, so that nobody takes a part of another list than it looked at."""
PATIENCE = 6_000  # looks at the board, some 25 ns each, before a thread sleeps: Python needs less between two lists
PARTS_A_THREAD = 2
_Char = ctypes.c_char
NOTHING = (0,) * (FIELDS - HEAD)

Task = tuple[int, ...]  # see `task`


def task(kernel: int, items: int, *values: int, beside: int = 1, alone: bool = False) -> Task:
    """A task: the kernel's address, items, and the fields it asks for. `beside`: of the first of some tasks that do not
    wait for each other, how many they are; `alone`: whether all of them are too short to share."""
    return (kernel, items, beside, alone, *values, *NOTHING[len(values) :])


def address(array: Any) -> int:
    """Where a C-contiguous array lies; it has to live as long as anyone reads there."""
    try:
        return ctypes.addressof(_Char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, or empty; it takes five times as long
        at: int = array.ctypes.data
        return at


@lru_cache(maxsize=64)
def bits(value: float) -> int:
    """Of a float32, as a field of a task."""
    return int(np.float32(value).view(np.int32))


class Team:
    """So many threads, the caller among them."""

    def __init__(self, threads: int) -> None:
        self._made = _code()
        self._board = np.zeros(128, np.int64)
        self._at = self._board.ctypes.data
        self._awake = ctypes.c_int64.from_address(self._at + 8 * AWAKE)
        one = ctypes.c_int64
        self._do = ctypes.CFUNCTYPE(None, one, ctypes.c_char_p, one, one)(self._made.addresses["do"])
        self._help = ctypes.CFUNCTYPE(None, one, one)(self._made.addresses["help"])
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
        """Do tasks, those that are `beside` each other at once and the others in order."""
        count = len(tasks)
        packed = struct.pack(f"{FIELDS * count}q", *chain.from_iterable(tasks))
        alone = self._threads == 1 or all(one[3] for one in tasks)
        if alone or not self._mine.acquire(blocking=False):  # another thread has the helpers
            self._do(self._at, packed, count, 1)
            return
        try:
            if self._awake.value < self._threads - 1:
                for bell in self._bells:
                    if bell.locked():
                        bell.release()
            self._do(self._at, packed, count, PARTS_A_THREAD * self._threads)
        finally:
            self._mine.release()

    def _wait(self, bell: Any) -> None:
        while True:
            bell.acquire()
            if self._board[STOP]:
                return
            self._help(self._at, PATIENCE)

    def _end(self) -> None:
        """No thread may be in compiled code once the interpreter takes it away."""
        self._board[STOP] = 1
        for bell, helper in zip(self._bells, self._helpers, strict=True):
            if bell.locked():
                bell.release()
            helper.join(1.0)


@cache
def _code() -> Compiled:
    def write(module: ir.Module) -> None:
        _write_part(module)
        _write_try(module)
        _write_do(module)
        _write_help(module)

    return compiled(write)


def _call(code: Code, name: str, *values: Value) -> Value:
    return Value(code, code.builder.call(code.module.globals[name], [one.raw for one in values]))


def _write_part(module: ir.Module) -> None:
    """part(tasks, count, part, parts): a part of each of `count` tasks."""
    code = Code(module, "part", 4)
    tasks, count, part, parts = code.arguments
    with code.counting(0, count) as index:
        one = tasks + index * (8 * FIELDS)
        items = code.load(I64, one + 8)
        first, last = items * part // parts, items * (part + 1) // parts
        with code.where(first.below(last)):
            code.run(code.load(I64, one), one, first, last)
    code.end()


def _write_try(module: ir.Module) -> None:
    """attempt(board): 1 if a part was taken and done, else 0."""
    code = Code(module, "attempt", 1, result=True)
    (board,) = code.arguments
    build, found = code.builder, code.variable(code.number(0))
    word = code.pointer(board + 8 * WORD, I64)
    seen = Value(code, build.load_atomic(word, "acquire", 8))
    parts, taken = (seen >> 16) & 0xFFFF, seen & 0xFFFF
    with code.where(taken.below(parts)):
        # Read before the part is taken: as long as one is left these are of this list.
        tasks, count = (code.load(I64, board + 8 * place) for place in (TASKS, COUNT))
        swapped = build.cmpxchg(word, seen.raw, (seen + 1).raw, "acq_rel", "acquire")
        with code.where(Value(code, build.extract_value(swapped, 1))):
            _call(code, "part", tasks, count, taken, parts)
            done = code.pointer(board + 8 * DONE, I64)
            build.atomic_rmw("add", done, ir.Constant(I64, 1), "release")
        found.set(code.number(1))
    code.end(found.value)


def _pause(code: Code) -> None:
    """Tell the core that it waits, where there is a word for it."""
    if machine() == "x86_64":
        code.intrinsic("llvm.x86.sse2.pause", ir.VoidType(), ())


def _write_do(module: ir.Module) -> None:
    """do(board, tasks, count, parts): all tasks; alone with one part."""
    code = Code(module, "do", 4)
    board, tasks, count, parts = code.arguments
    at, build = code.variable(code.number(0)), code.builder
    with code.looping() as go_on:
        go_on(at.value.below(count))
        first = tasks + at.value * (8 * FIELDS)
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
                build.store_atomic((((seen >> 32) + 1) << 32 | parts << 16).raw, word, "release", 8)
                with code.looping() as more:
                    more(code.number(0).below(_call(code, "attempt", board)))
                with code.looping() as wait:
                    wait(Value(code, build.load_atomic(done, "acquire", 8)).below(parts))
                    _pause(code)
        at.set(at.value + beside)
    code.end()


def _write_help(module: ir.Module) -> None:
    """help(board, patience): parts as they come, until there was none for so many looks."""
    code = Code(module, "help", 2)
    board, patience = code.arguments
    idle, build = code.variable(code.number(0)), code.builder
    awake = code.pointer(board + 8 * AWAKE, I64)
    build.atomic_rmw("add", awake, ir.Constant(I64, 1), "acq_rel")
    with code.looping() as go_on:
        stop = Value(code, build.load_atomic(code.pointer(board + 8 * STOP, I64), "monotonic", 8))
        left = code.chosen(stop.same(0), patience, code.number(0))
        go_on(idle.value.below(left))
        did = _call(code, "attempt", board)
        idle.set(code.chosen(did.same(0), idle.value + 1, code.number(0)))
        _pause(code)
    build.atomic_rmw("sub", awake, ir.Constant(I64, 1), "acq_rel")
    code.end()
