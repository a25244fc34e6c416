"""What counts as written too early in machine code, on listings made up for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from operands_in_flight import overwritten

PRODUCT = "QGMMA.64x128x32.F32.E4M3.E4M3 R24, R152, gdesc[UR8], R24"
LAST = f"{PRODUCT}, gsb0"
OTHER = "IGMMA.64x128x32.S8.S8 R88, gdesc[UR8], RZ, !UPT, gsb0"
NONE, ONE = (f"WARPGROUP.DEPBAR.LE gsb0, 0x{pending}" for pending in (0, 1))


def code(*lines: str) -> str:
    """A listing; lines that begin with a dot are labels."""
    return "\n".join(line if line.startswith(".") else f"  /*{16 * i:04x}*/  {line} ;" for i, line in enumerate(lines))


@pytest.mark.parametrize("write", ["MOV R152, R5", "@!P0 IADD3 R155, R1, R2", "LDS.128 R149, [R7]", "CS2R R151, SRZ"])
def test_a_write_before_the_wait_is_found(write: str) -> None:
    (found,) = overwritten(code(LAST, "FADD R1, R2, R3", write, NONE, "EXIT"))
    assert write in found
    assert "at 0020" in found


@pytest.mark.parametrize(
    "write",
    ["MOV R156, R5", "MOV R151, R5", "STS.128 [R152], R4", "SYNCS.ARRIVE RZ, [R152]", "LDS.64 R150, [R7]"],
)
def test_other_registers_and_stores_are_none(write: str) -> None:
    assert not overwritten(code(LAST, write, NONE, "EXIT"))


def test_a_wait_counts_groups() -> None:
    write = "MOV R153, R5"
    assert not overwritten(code(LAST, NONE, write, "EXIT"))
    assert overwritten(code(LAST, ONE, write, NONE, "EXIT")), "its own group may be the one that is left"
    assert not overwritten(code(LAST, OTHER, ONE, write, "EXIT")), "a newer one is left"
    assert overwritten(code(PRODUCT, OTHER, ONE, write, "EXIT")), "the next commit ends its own group"


def test_ways_through_a_loop_are_walked() -> None:
    loop = code(".L_x_1:", "MOV R154, R9", NONE, LAST, "@!P0 BRA `(.L_x_1)", NONE, "EXIT")
    (found,) = overwritten(loop)
    assert "MOV R154, R9" in found
    assert not overwritten(code(".L_x_1:", NONE, "MOV R154, R9", LAST, "@!P0 BRA `(.L_x_1)", NONE, "EXIT"))
