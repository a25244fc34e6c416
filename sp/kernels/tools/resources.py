"""The resources that a kernel needs, parsed from ptxas's output in the compiler's log, and the limits of GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

ARCHES = ("80", "86", "89", "90", "90a", "100", "120")
SHARED_LIMIT = {"80": 163, "86": 99, "89": 99, "90": 227, "90a": 227, "100": 227, "120": 99}
"""Most shared memory of a block in KiB, by architecture."""
REGISTER_FILE = 65536  # 32-bit registers of a multiprocessor

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
PROPERTIES = re.compile(r"Function properties for (\w+)")
SERIOUS = re.compile(r"warning|\(C7\d\d\d\)|Potential Performance Loss", re.IGNORECASE)
HARMLESS = re.compile(r"1444-D|can be suppressed")
"""Not a problem: CUDA 13's own cuda_fp8.h uses a vector type that it deprecates; and the remark after every warning."""


@dataclass(frozen=True)
class Resources:
    """Resources of one entry: registers per thread, and bytes of spills, stack frame and static shared memory."""

    registers: int
    spill: int
    stack: int
    shared: int


def parse_log(log: str) -> dict[str, Resources]:
    """Return the resources of every entry in a log compiled with ``report=True``."""
    resources: dict[str, Resources] = {}
    entry, subject, stack, spill = "", "", 0, 0
    for line in log.splitlines():
        if match := ENTRY.search(line):
            entry = subject = match[1]
            stack = spill = 0
        elif match := PROPERTIES.search(line):
            subject = match[1]
        # ptxas also lists the functions that an entry calls; only the entry's own stack frame counts.
        elif (match := STACK.search(line)) and subject == entry:
            stack, spill = int(match[1]), int(match[2]) + int(match[3])
        elif match := USED.search(line):
            resources[entry] = Resources(int(match[1]), spill, stack, int(match[2] or 0))
    return resources


def warnings(log: str) -> list[str]:
    """Return the lines of a log that must not occur: warnings, and ptxas's notes that it gave up an optimisation."""
    return [line.strip() for line in log.splitlines() if SERIOUS.search(line) and not HARMLESS.search(line)]


def misfits(need: Resources, arch: str, threads: int, dynamic: int) -> list[str]:
    """Return the reasons why a kernel cannot be launched on a GPU of `arch`; empty if it can."""
    problems = []
    shared, limit = need.shared + dynamic, SHARED_LIMIT[arch] << 10
    if shared > limit:
        problems.append(f"{shared} bytes of shared memory, sm_{arch} has {limit}")
    # Registers are allocated per thread in multiples of 8 and per warp.
    registers = -(-need.registers // 8) * 8 * -(-threads // 32) * 32
    if registers > REGISTER_FILE:
        problems.append(f"{threads} threads x {need.registers} registers are too many; set __launch_bounds__")
    return problems
