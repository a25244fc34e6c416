"""`sp bench model` on the device: random models that cost what real ones do, timings, kernels, records."""

from __future__ import annotations

import json
from dataclasses import replace

import cupy
import numpy as np
import pytest
from command_line import invoke

from sp.bench.model import Trial, describe, run_tests
from sp.bench.record import FIELDS, make_record, model_facts
from sp.bench.timing import kernel_times
from sp.models import load_model, prefill
from sp.models.synthetic.random_store import random_model
from sp.models.synthetic.synthetic import write_synthetic
from sp.session.loaded import embedded


@pytest.mark.parametrize("shape", ["tiny-qwen3", "tiny-qwen35"])
@pytest.mark.parametrize("file_type", ["q4_k_m", "q8_0", "bf16", "f32"])
def test_a_random_model_is_as_large_as_its_file_and_stays_finite(shape, file_type, tmp_path) -> None:
    model = random_model(shape, file_type)
    written = load_model(write_synthetic(tmp_path / "m.gguf", shape, file_type), device="cuda")
    assert replace(model.config, eps=written.config.eps) == written.config  # a file holds it in float32
    # A tied embedding is two matrices here as there; the vectors are the same in both.
    assert model.nbytes == written.nbytes
    ids = np.random.default_rng(0).integers(0, 2000, 300)
    logits = [
        prefill(m, ids, np.arange(300), m.new_cache(300)).get()
        for m in (model, written, random_model(shape, file_type))
    ]
    assert np.isfinite(logits[0]).all()
    assert 0.2 < logits[0].std() / logits[1].std() < 5
    np.testing.assert_array_equal(logits[0], logits[2])


def test_timings_and_records(path) -> None:
    model = load_model(embedded("target"), device="cuda")
    trials = [Trial(300), Trial(0, 5), Trial(100, 5)]
    for timing, trial in zip(run_tests(model, trials, 2), trials, strict=True):
        assert timing.test == trial
        assert len(timing.seconds) == 2
        assert 0 < min(timing.seconds) < 60
        assert timing.peak_bytes >= model.nbytes
        assert "gemv.cu" in timing.sources
        entry = make_record(**describe(timing, model_facts("m", model.config, None), path, "f16"))
        assert set(FIELDS) <= entry.keys()
        assert json.loads(json.dumps(entry)) == entry
        assert entry["metrics"].get("replayed_tokens") == (None if trial.new else trial.prompt)


def test_kernel_times_name_what_ran() -> None:
    model = load_model(embedded("drafter"), device="cuda")
    cache = model.new_cache(300)
    found = kernel_times(lambda: prefill(model, np.arange(300), np.arange(300), cache), hold_ms=5)
    names = {item.entry for item in found}
    assert {"gather_rows", "attention_heads", "gemv"} <= names
    assert [item.ms for item in found] == sorted((item.ms for item in found), reverse=True)
    assert all(item.launches > 0 and item.ms > 0 for item in found)
    assert sum(item.launches for item in found if item.entry == "attention_heads") == model.config.layers - 1


def test_the_command_records_what_it_measures(tmp_path) -> None:
    arguments = ["bench", "model", str(embedded("target")), "-p", "200", "-n", "4", "-r", "2", "--kernels", "--json"]
    done = invoke([*arguments, "--record", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [test["test"] for test in report["tests"]] == ["pp200", "tg4"]
    assert set(report["kernels"]) == {"pp200", "tg4"}
    files = {file.stem: file.read_text().splitlines() for file in tmp_path.rglob("*.jsonl")}
    assert {name: len(lines) for name, lines in files.items()} == {"load": 1, "prefill": 1, "decode": 1}
    assert json.loads(files["load"][0])["config"]["file_bytes"] == embedded("target").stat().st_size
    portable = invoke(["bench", "model", "--synthetic", "tiny-qwen35", "-r", "1", "--path", "portable"])
    assert portable.exit_code == 0, portable.output
    assert "portable" in portable.stdout
    cupy.get_default_memory_pool().free_all_blocks()
