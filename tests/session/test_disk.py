"""Conversations in files: what is read is what was written, whatever became of the file, its folder and the process."""

from __future__ import annotations

from pathlib import Path

import fuzz_turns
import pytest
from talks import ARCHS


@pytest.mark.parametrize("target", ARCHS)
@pytest.mark.parametrize("drafter", ARCHS)
def test_random_turns_with_restarts(target: str, drafter: str, tmp_path: Path) -> None:
    """Every turn is checked against a reading anew of all that stands in the caches."""
    fuzz_turns.lines.clear()
    told = fuzz_turns.walk(40, 3, target, drafter, folder=tmp_path)
    assert told["restored"] > 1
    assert told["restarts"] > 4
    assert told["forks"]
    assert all("sessions of these models" in line for line in fuzz_turns.lines), "a file was damaged"
