"""Templates pieced together from hostile ones render or are refused, and soon; see `fuzz_templates`."""

from __future__ import annotations

from fuzz_templates import try_many


def test_pieced_templates() -> None:
    outcomes = try_many(250, 0)
    assert not outcomes.faults, str(outcomes)
    assert min(outcomes.read, outcomes.refused) > 20, str(outcomes)
