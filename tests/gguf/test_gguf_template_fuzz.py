"""Templates pieced together from hostile ones render or are refused, and soon; see `fuzz_templates`."""

from __future__ import annotations

from fuzz_templates import try_many


def test_pieced_templates() -> None:
    found = try_many(250, 0)
    assert not found.faults, str(found)
    assert min(found.read, found.refused) > 20, str(found)
