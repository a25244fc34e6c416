"""Scoring heads as files: what comes back of them, which are refused and how, and those that ship."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from scorer_cases import random_head

from sp.errors import ConfigError
from sp.hub import KNOWN
from sp.models import Model, ModelConfig, Retrieval
from sp.models.synthetic.shapes import find_shape
from sp.scoring.calibration import record
from sp.scoring.trained.late_interaction import MOST_BYTES, SCHEMA, SHIPPED, ScoringHead, head_for, load_head, shipped
from sp.session.loaded import embedded, load

CONFIG: ModelConfig = find_shape("tiny-qwen3").config
SMOLLM2 = KNOWN["smollm2-135m"].sha256


@pytest.fixture(scope="module")
def drafter() -> Model:
    return load(embedded("drafter"), device="cpu").model


def same(one: ScoringHead, other: ScoringHead) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("query", "key", "gate")]
    return one.drafter == other.drafter and all(
        a.keys() == b.keys() and all(np.array_equal(a[layer], b[layer]) for layer in a) for a, b in pairs
    )


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    head, path = random_head(CONFIG, query=(0,), key=(0, 1), rank=5, drafter="ab" * 32), tmp_path / "h.safetensors"
    head.save(path, {"recipe": "none"})
    found = ScoringHead.load(path)
    assert same(found, head)
    assert (found.rank, found.depth) == (5, CONFIG.attention_layers[1] + 1)
    assert all(array.dtype == np.float32 for array in (*found.query.values(), *found.key.values()))
    assert list(tmp_path.iterdir()) == [path]
    found.save(path, {})
    assert same(ScoringHead.load(path), head)  # float16 loses nothing twice


def test_what_is_saved_is_float16(tmp_path: Path) -> None:
    head, path = random_head(CONFIG), tmp_path / "h.safetensors"
    head = replace(head, gate={layer: gate + np.float32(1e-3) for layer, gate in head.gate.items()})
    head.save(path, {})
    for layer, gate in ScoringHead.load(path).gate.items():
        np.testing.assert_array_equal(gate, head.gate[layer].astype(np.float16))


def test_a_file_that_changes_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "h.safetensors"
    for place, seed in enumerate((1, 2)):
        random_head(CONFIG, seed=seed).save(path, {})
        os.utime(path, ns=(place, place))
        assert same(load_head(path), random_head(CONFIG, seed=seed))
        assert load_head(path) is load_head(path)


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    """Those of a sound file, with changes by name with ``_`` for the point; None leaves one out."""
    head = random_head(CONFIG)
    found = {f"{name}.{layer}": a for name in ("query", "key", "gate") for layer, a in getattr(head, name).items()}
    found |= {name.replace("_", "."): array for name, array in changes.items()}
    return {name: np.asarray(array, np.float32) for name, array in found.items() if array is not None}


TOLD = {"schema": SCHEMA, "drafter": "0" * 64}
WIDE, DEEP = CONFIG.heads * CONFIG.head_dim, 2 * CONFIG.kv_heads * CONFIG.head_dim
NO_NUMBER = np.where(np.arange(WIDE * 7).reshape(WIDE, 7) == 99, np.nan, 1)
HOSTILE: dict[str, tuple[dict[str, np.ndarray], dict[str, str], str]] = {
    "another version": (arrays(), TOLD | {"schema": "sp-scoring-head/9"}, "schema 'sp-scoring-head/9', not"),
    "a long version": (arrays(), TOLD | {"schema": "x\n" * 9999}, "schema 'x"),
    "no version": (arrays(), {"drafter": "0" * 64}, "no schema, not"),
    "no drafter": (arrays(), {"schema": SCHEMA}, "no scoring head .KeyError."),
    "not a number": (arrays(query_0=NO_NUMBER), TOLD, "query.0 has weights that are not finite"),
    "infinite": (arrays(gate_0=np.full(WIDE, np.inf)), TOLD, "gate.0 has weights that are not finite"),
    "an array of another kind": (arrays(bias_0=np.ones(3)), TOLD, "an array named bias.0"),
    "a layer twice": (arrays() | {"key.00": np.ones((DEEP, 7), np.float32)}, TOLD, "an array named key.00"),
    "a gate lost": (arrays(gate_0=None), TOLD, "layers or ranks are inconsistent"),
    "a gate too many": (arrays(gate_9=np.ones(WIDE)), TOLD, "layers or ranks are inconsistent"),
    "two ranks": (arrays(query_0=np.ones((WIDE, 6))), TOLD, "layers or ranks are inconsistent"),
    "no dimension": (
        {"query.0": np.ones((WIDE, 0), np.float32), "key.0": np.ones((DEEP, 0), np.float32), "gate.0": np.ones(WIDE)},
        TOLD,
        "layers or ranks are inconsistent",
    ),
    "a vector for a matrix": (arrays(key_0=np.ones(7)), TOLD, "no scoring head .IndexError."),
    "a number": (arrays(key_0=np.ones(())), TOLD, "no scoring head .ModelError."),
    "nothing": ({}, TOLD, "layers or ranks are inconsistent"),
    "no keys": (
        {name: a for name, a in arrays().items() if "key" not in name},
        TOLD,
        "layers or ranks are inconsistent",
    ),
    "no queries": (
        {name: a for name, a in arrays().items() if "key" in name},
        TOLD,
        "layers or ranks are inconsistent",
    ),
    "whole numbers": (arrays() | {"key.0": np.ones((DEEP, 7), np.int32)}, TOLD, "no scoring head .ModelError."),
}


def refused(path: Path, message: str) -> None:
    """In one line that names the file, by all ways to it."""
    for ask in (ScoringHead.load, load_head, lambda path: head_for(CONFIG, str(path))):
        with pytest.raises(ConfigError, match=message) as caught:
            ask(path)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(str(path))
        assert len(str(caught.value)) < len(str(path)) + 250


@pytest.mark.parametrize("case", HOSTILE)
def test_a_wrong_file_is_one_line(case, tmp_path) -> None:
    held, told, message = HOSTILE[case]
    path = tmp_path / "h.safetensors"
    save_file(
        {name: np.asarray(a, a.dtype if a.dtype.kind == "i" else np.float32) for name, a in held.items()}, path, told
    )
    refused(path, message)


@pytest.mark.parametrize("kept", [0, 7, 60, 2000, -1])
def test_a_truncated_file_is_one_line(kept, tmp_path) -> None:
    path = tmp_path / "h.safetensors"
    random_head(CONFIG).save(path, {})
    path.write_bytes(path.read_bytes()[:kept])
    refused(path, "no scoring head")


def test_what_is_no_file_of_that_size_is_one_line(tmp_path) -> None:
    refused(tmp_path / "none.safetensors", "No such file or directory; name a file with scorer.weights")
    refused(tmp_path, "not a file; pass a file")
    refused(tmp_path / "a\0b", "no scoring head")
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    refused(pipe, "not a file; pass a file")
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    refused(large, "16,777,217 bytes are too many")
    large.write_text("{}")
    refused(large, "no scoring head")


@pytest.mark.parametrize(
    ("shape", "changes"),
    [("qwen3-0.6b", {}), ("tiny-qwen3", {"key_99": np.ones((DEEP, 7))}), ("tiny-qwen3", {"gate_0": np.ones(WIDE + 1)})],
    ids=["another drafter", "a layer too deep", "a wide gate"],
)
def test_a_head_of_another_drafter_is_refused(shape, changes, tmp_path) -> None:
    path = tmp_path / "h.safetensors"
    save_file(arrays(**changes), path, TOLD)
    with pytest.raises(ConfigError, match=r"of another drafter: (query|key|gate) of layer") as caught:
        head_for(find_shape(shape).config, str(path))
    assert "\n" not in str(caught.value)


def test_of_what_ships_the_drafter_s_is_taken(drafter) -> None:
    heads = tuple(range(drafter.config.heads))
    for sha256 in ("", "0" * 64):
        other = replace(drafter.config, retrieval=Retrieval(((0, heads),), "none", sha256=sha256))
        with pytest.raises(ConfigError, match="no trained head for this drafter"):
            head_for(other)
    forged = replace(drafter.config, retrieval=Retrieval(((0, heads),), "none", sha256=SMOLLM2))
    with pytest.raises(ConfigError, match=r"smollm2-135m.safetensors: of another drafter"):
        head_for(forged)


def test_what_ships_is_small_and_sound_and_belongs_to_a_model_that_has_a_name() -> None:
    files = sorted(SHIPPED.iterdir())
    assert [path.name for path in files] == ["smollm2-135m.safetensors"]
    assert all(path.stat().st_size < 1_000_000 for path in files)
    assert shipped() == {SMOLLM2: files[0]}
    head = ScoringHead.load(files[0])
    assert head.drafter == SMOLLM2
    assert (head.rank, head.depth, len(head.key), len(head.query)) == (96, 19, 6, 4)


def test_whatever_has_a_head_has_a_calibration_that_names_it() -> None:
    """For a head is found by the sha256 that the calibration brings."""
    named = {sha256 for sha256, found in record.shipped().items() if found.scorer == "late_interaction"}
    assert named == set(shipped())
    for path in record.SHIPPED.glob("*.json"):
        assert json.loads(path.read_text())["scorer"] in ("tail", "late_interaction", "calibrated")
