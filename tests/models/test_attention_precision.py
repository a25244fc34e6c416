"""Which attention of a model is made in 8 bits: long runs of caches that ask for it, on the host and the device."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from dry_walk import walked

from sp.bench.record import running
from sp.models import Hooks, load_model, prefill, read_layer_major
from sp.models.layer import steps
from sp.models.network import arithmetic
from sp.models.run import layer_attention
from sp.models.run.layer_attention import SparseAttention
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.attention.attention import BYTE_QUERIES
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.quant import Math
from sp.session import Pipeline
from sp.session.loaded import embedded

DRY = """
import json, sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from sp.kernels import forced_path
from sp.models import Hooks, load_model, prefill, read_layer_major
from sp.models.layer.steps import dense_attention
from sp.models.run.layer_attention import SparseAttention
from sp.ops.sparse.flashprefill import TopDensity
found = []
for path in ("sm_90a", "portable"):
    with forced_path(path):
        model = load_model(sys.argv[2], device="cuda", precision="int8")
        for n in (2048, 2049):
            for attend in (dense_attention, SparseAttention(TopDensity(0.3))):
                for kv in ("f16", "5bit"):
                    cache, ids = model.new_cache(n, kv, layers=1), np.arange(n)
                    dry_device.launches.clear()
                    read_layer_major(model, ids, ids, cache, Hooks(), attend=attend)
                    other = "attention_sm90" if path == "sm_90a" else "attention_portable"
                    names = ("attention_bytes", "kv_bytes", "value_peaks", other)
                    found.append((path, n, [dry_device.launches.get(name, 0) for name in names]))
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("n", "selector", "calls"),
    [
        (BYTE_QUERIES, None, 4),  # the last of five layers does not attend
        (BYTE_QUERIES, TopDensity(0.2), 4),
        (BYTE_QUERIES, FlashPrefill(0.1, mean_correction=True), 0),
        (BYTE_QUERIES - 1, TopDensity(0.2), 0),
    ],
)
def test_long_runs_of_a_model_that_asks_for_it(monkeypatch, n, selector, calls) -> None:
    seen = []
    for module, name in ((steps, "byte_output"), (layer_attention, "attend")):
        made = getattr(module, name)
        monkeypatch.setattr(module, name, lambda q, *rest, made=made: seen.append(len(q)) or made(q, *rest))
    model = load_model(embedded("drafter"), precision="int8")
    ids = np.random.default_rng(0).integers(0, model.config.vocab, n)
    attends = {} if selector is None else {"attend": SparseAttention(selector)}
    read_layer_major(model, ids, np.arange(n), model.new_cache(n, layers=1), Hooks(), **attends)
    assert seen == [n] * calls


def test_launches_on_a_device_and_the_portable_path_keeps_to_float16() -> None:
    for path, n, counts in json.loads(walked(DRY, str(embedded("drafter")))):
        long = path == "sm_90a" and n == BYTE_QUERIES
        assert counts == ([4, 4, 4, 0] if long else [0, 0, 0, 4]), (path, n)


@pytest.mark.parametrize(
    ("asked", "device", "path", "head_dim", "attention"),
    [
        ("auto", "cuda", "sm_90a", 128, "int8"),
        ("auto", "cuda", "sm_90a", 64, "int8"),
        ("auto", "cuda", "sm_90a", 96, "bf16"),
        ("auto", "cuda", "portable", 128, "bf16"),
        ("auto", "cpu", "sm_90a", 128, "bf16"),
        (Math.BF16, "cuda", "sm_90a", 128, "bf16"),
    ],
)
def test_auto_takes_attention_of_a_model_that_scores(monkeypatch, asked, device, path, head_dim, attention) -> None:
    monkeypatch.setattr(arithmetic, "current_path", lambda: path)
    made_in = arithmetic.Arithmetic(asked, reason="no matrix has 4,096 inputs")
    config = replace(find_shape("qwen3-0.6b").config, head_dim=head_dim)
    found = arithmetic.scoring(made_in, device, config)
    assert str(found.attention) == attention
    assert (found.precision, found.reason) == (Math.BF16, made_in.reason)
    told = running("sm_90a", found)
    if attention == "int8":
        assert told == {"path": "sm_90a", "math": "int8", "products": "bf16", "cards": 1, "asked_math": "auto"}
    else:
        assert told == {"path": "sm_90a", "math": "bf16", "cards": 1}


def test_a_pair_loads_its_drafter_to_score_and_its_target_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("sp.session.pipeline.scoring", lambda made_in, device, config: asked.append(config) or made_in)
    found = Pipeline.open(device="cpu", precision="auto", drafter_precision="auto")
    assert asked == [found.drafter.model.config]


def test_layers_with_windows_and_scales_of_their_own(monkeypatch, tmp_path) -> None:
    calls = []
    made = steps.byte_output
    monkeypatch.setattr(steps, "byte_output", lambda *given: calls.append(given[3].window) or made(*given))
    path, seen = write_synthetic(tmp_path / "m.gguf", "tiny-gemma3", "q8_0", 0), {}
    for precision in ("bf16", "int8"):
        model = load_model(path, precision=precision)
        ids = np.random.default_rng(0).integers(0, model.config.vocab, BYTE_QUERIES)
        positions = np.cumsum(np.random.default_rng(1).integers(1, 3, BYTE_QUERIES))  # with gaps
        seen[precision] = prefill(model, ids, positions, model.new_cache(BYTE_QUERIES), chunk=BYTE_QUERIES)
    assert calls == list(model.config.windows[:-1])
    error = np.mean((seen["int8"] - seen["bf16"]) ** 2) / np.mean(seen["bf16"] ** 2)
    assert error < 0.02, error
