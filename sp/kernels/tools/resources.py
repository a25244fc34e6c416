"""What ptxas says a kernel needs, read from the compiler's log, and the limits of the cards it must fit."""

from __future__ import annotations

import re
from dataclasses import dataclass

ARCHES = ("80", "86", "89", "90", "90a", "100", "120")
SHARED_LIMIT = {"80": 163, "86": 99, "89": 99, "90": 227, "90a": 227, "100": 227, "120": 99}
"""KiB of shared memory a block may have."""
REGISTER_FILE = 65536

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
PROPERTIES = re.compile(r"Function properties for (\w+)")
SERIOUS = re.compile(r"warning|\(C7\d\d\d\)|Potential Performance Loss", re.IGNORECASE)
HARMLESS = re.compile(r"1444-D|can be suppressed")
"""CUDA 13's own cuda_fp8.h uses a vector type it deprecates; and the remark that follows every warning."""


@dataclass(frozen=True)
class Resources:
    """Needs of one entry: registers a thread, bytes of spills, stack frame and static shared memory."""

    registers: int
    spill: int
    stack: int
    shared: int


def parse_log(log: str) -> dict[str, Resources]:
    """Resources of every entry in a log made with ``report=True``."""
    found: dict[str, Resources] = {}
    entry, subject, stack, spill = "", "", 0, 0
    for line in log.splitlines():
        if match := ENTRY.search(line):
            entry = subject = match[1]
            stack = spill = 0
        elif match := PROPERTIES.search(line):
            subject = match[1]
        elif (match := STACK.search(line)) and subject == entry:
            stack, spill = int(match[1]), int(match[2]) + int(match[3])
        elif match := USED.search(line):
            found[entry] = Resources(int(match[1]), spill, stack, int(match[2] or 0))
    return found


def warnings(log: str) -> list[str]:
    """Lines of a log that must not be there: warnings, and notes of ptxas that it gave up on something."""
    return [line.strip() for line in log.splitlines() if SERIOUS.search(line) and not HARMLESS.search(line)]


def misfits(need: Resources, arch: str, threads: int, dynamic: int) -> list[str]:
    """Why a kernel could not be launched on a card of `arch`; empty if it can."""
    found = []
    shared, limit = need.shared + dynamic, SHARED_LIMIT[arch] << 10
    if shared > limit:
        found.append(f"{shared} bytes of shared memory, sm_{arch} has {limit}")
    registers = -(-need.registers // 8) * 8 * -(-threads // 32) * 32
    if registers > REGISTER_FILE:
        found.append(f"{threads} threads x {need.registers} registers do not fit; name the block in __launch_bounds__")
    return found
