"""Damaged files in every weight format bring a GGUFError or are read, fast; see `fuzz_formats.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_formats import VALID, read_all, try_many

from sp.quant import FORMATS


def test_the_valid_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(VALID)
    assert read_all(path) == 2 * len(FORMATS)


def test_mutations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcomes = try_many(700, 0)
    assert not outcomes.faults, str(outcomes)
    assert 0.05 < outcomes.read / outcomes.tried < 0.8, "both ends must be seen"
