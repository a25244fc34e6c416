"""A trace times stages, saves what it holds, and never leaves half a file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sp.trace import Trace, write_atomic


def test_stage_times_its_body_and_may_count_late() -> None:
    trace = Trace()
    with trace.stage("sleep") as stage:
        time.sleep(0.02)
        stage.tokens = 7
    assert 0.02 <= trace.stages[0].seconds < 1
    assert trace.stages[0].tokens == 7
    assert trace.seconds == trace.stages[0].seconds


def test_saved_trace_reads_back(tmp_path: Path) -> None:
    trace = Trace(facts={"n": np.int64(3), "path": tmp_path})
    trace.arrays["kept"] = np.array([True, False])
    trace.arrays["strided"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    facts, arrays = trace.save(tmp_path / "new")
    assert json.loads(facts.read_text()) == {"stages": [], "n": 3, "path": str(tmp_path)}
    back = load_file(arrays)
    np.testing.assert_array_equal(back["strided"], trace.arrays["strided"])
    np.testing.assert_array_equal(back["kept"], [True, False])


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_atomic(tmp_path / "a.json", b"old")

    def fail(self: Path, data: bytes) -> int:
        self.open("wb").write(data[:1])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_peak_memory_sees_an_allocation() -> None:
    """In a process of its own, whose peak is not that of this one, which may be gigabytes."""
    code = """
import numpy as np
from sp.trace import peak_bytes
before = peak_bytes()
assert before < 256 << 20
block = np.ones(before + (64 << 20), np.uint8)
print(before + (32 << 20) <= peak_bytes())
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
