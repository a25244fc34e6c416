"""`sp bench ttft` on the device: synthetic pair, density, memory, decode rate, pictures, records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import invoke

from sp.bench.record import FIELDS
from sp.session.measured import measured_break_evens


@pytest.mark.no_sanitizer
def test_a_synthetic_pair_is_timed_and_recorded(tmp_path: Path) -> None:
    pair = ["--synthetic-target", "tiny-qwen35", "--synthetic-drafter", "tiny-qwen3", "--drafter-type", "q8_0"]
    given = ["-p", "2k,4k", "--keep-ratio", "0.2,0.1", "--sparse", "density:0.3", "-r", "2", "-n", "12"]
    out = ["--record", str(tmp_path), "--plots", str(tmp_path / "plots"), "--json"]
    done = invoke(["bench", "ttft", "--device", "cuda", *pair, *given, *out])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["tests"]
    assert len(rows) == 6
    assert not any(row["error"] for row in rows)
    for row in rows:
        assert row["decode_tok_s"] > 0
        assert row["peak_bytes"] > 0
        assert row["path"] in ("sm_90a", "portable")
        if row["keep_ratio"] < 1:
            assert 0.3 < row["density"] < 1  # what is always read counts on top of what was asked for
            assert row["kept_tokens"] <= row["keep_ratio"] * row["prompt_tokens"] + 100  # question and markup
    assert rows[1]["cold_ttft_s"] >= rows[1]["ttft_s"]
    (file,) = tmp_path.glob("*/ttft.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(set(FIELDS) <= set(record) for record in records)
    assert all("gemv.cu" in record["kernels"] for record in records)
    assert {even.keep_ratio for even in measured_break_evens(records)} == {0.1, 0.2}
    assert (tmp_path / "plots" / "ttft_memory.png").stat().st_size > 10_000
