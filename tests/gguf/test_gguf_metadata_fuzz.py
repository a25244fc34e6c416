"""Metadata of wrong kinds, drafts of hostile JSON: one short line each, soon; see `fuzz_metadata`, `fuzz_drafts`."""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
import warnings
from pathlib import Path
from types import ModuleType

import fuzz_drafts
import fuzz_metadata
import outcomes
import pytest
import raw_gguf as raw
from fuzz_metadata import cases, tiny_target
from outcomes import MOST_CHARACTERS, Outcomes

from sp.bench.record import file_facts
from sp.errors import GGUFError, ModelError, SpError
from sp.evals.trained_for import note_of_file
from sp.gguf import GGUFFile, Tokenizer
from sp.models.drafts.dflash import load_draft
from sp.models.file.metadata_keys import SketchKeys
from sp.models.file.refusals import NEUTRAL
from sp.models.file.safetensors_file import MOST_HEADER, SafetensorsFile
from sp.models.synthetic.dflash_synthetic import find_draft_shape
from sp.session.loaded import load


@pytest.mark.parametrize(("fuzz", "count"), [(fuzz_metadata, 90), (fuzz_drafts, 300)], ids=["metadata", "drafts"])
def test_wrong_kinds(fuzz: ModuleType, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found: Outcomes = fuzz.try_many(count, 0)
    assert not found.faults, str(found)
    assert min(found.refused, found.read) > count // 25, "both ends must be seen"


def test_outcomes_tell_faults() -> None:
    """A fuzz that could not fail would be worth nothing."""

    def refuse(message: str) -> None:
        raise GGUFError(message)

    counts = Outcomes()
    counts.meet(
        [
            lambda: refuse("short"),
            lambda: 1 / 0,
            lambda: refuse("x" * (MOST_CHARACTERS + 1)),
            lambda: refuse("two\nlines"),
        ],
        str,
    )
    assert (counts.refused, counts.read, counts.faults.total()) == (1, 0, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_outcomes_tell_what_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "SECONDS", 0.02)
    gc.collect()  # what earlier tests left and Python gives back meanwhile would hide what is taken
    counts = Outcomes()
    counts.meet([lambda: sum(range(3_000_000))], str)
    counts.meet([lambda: bytearray(b"x") * (300 << 20)], str)
    monkeypatch.setattr(outcomes, "GIVEN_UP", 0.3)
    counts.meet([lambda: time.sleep(5)], str)
    message = " ".join(counts.faults)
    assert "took more than" in message
    assert "more memory than a file may" in message
    assert "SlowError" in message


def hostile(path: Path, name: str, **changes: tuple[int, bytes]) -> Path:
    """One of the fuzz's files with keys changed, with `__` for the dot."""
    case = next(one for one in cases() if one.name == name)
    case.write(path, {key.replace("__", "."): value for key, value in changes.items()})
    return path


BOOLS = raw.ARRAY, raw.array("", raw.BOOL, 3, b"\1\0\1")[12:]


def test_arrays_are_no_scalars(tmp_path: Path) -> None:
    path = hostile(tmp_path / "m.gguf", "tiny-qwen3", general__name=BOOLS, general__file_type=BOOLS)
    assert file_facts(path)["type"] is None
    assert note_of_file(path) == ""
    assert load(path, device="cpu").model.config.layers == 4
    path = hostile(tmp_path / "m.gguf", "tiny-qwen3", qwen3__embedding_length=BOOLS)
    with pytest.raises(ModelError, match=r"embedding_length is \[True, False, True\]; it must be a whole number"):
        load(path, device="cpu")


@pytest.mark.parametrize("key", ["logit_scale", "markov_rank", "target_layers", "rope.freq_base"])
def test_arrays_in_drafts(tmp_path: Path, key: str) -> None:
    path = hostile(tmp_path / "d.gguf", "dflash-tiny-qwen35", **{f"dflash.{key}": BOOLS})
    with pytest.raises(ModelError, match=r"d\.gguf: "):
        load_draft(path, tiny_target())


def test_layers_are_given_by_flags_and_by_nothing_else(tmp_path: Path) -> None:
    words = raw.ARRAY, raw.array("", raw.STRING, 4, raw.text("x") * 4)[12:]
    path = hostile(tmp_path / "m.gguf", "tiny-qwen35", qwen35__attention__recurrent_layers=words)
    with pytest.raises(ModelError, match=r"recurrent_layers is \['x', 'x', 'x', 'x'\]; flags are true or false"):
        load(path, device="cpu")


def test_blocks_below_zero_add_none() -> None:
    """Found by the fuzz: a sketch of 32,772 layers took five seconds."""
    metadata = {"llama.block_count": 4, "llama.nextn_predict_layers": -(1 << 15)}
    assert SketchKeys("llama", metadata, "m.gguf").layers(0) == 4


def test_a_vocabulary_is_neither_printed_nor_half_decoded(tmp_path: Path) -> None:
    path = hostile(
        tmp_path / "m.gguf",
        "tiny-qwen2",
        tokenizer__ggml__tokens=(raw.ARRAY, raw.array("", raw.STRING, 2, raw.text("a") + raw.text(b"\xc3("))[12:]),
    )
    with pytest.raises(GGUFError, match=r"string 1 of key .tokenizer\.ggml\.tokens. is not UTF-8"):
        Tokenizer.from_gguf(GGUFFile.open(path))
    many = raw.ARRAY, raw.array("", raw.STRING, 5000, raw.text("word") * 5000)[12:]
    for key in ("tokenizer.ggml.pre", "general.architecture", "qwen2.rope.scaling.type", "qwen2.block_count"):
        hostile(path, "tiny-qwen2", **{key: many})
        with pytest.raises(SpError) as caught:
            load(path, device="cpu")
        assert len(str(caught.value)) <= MOST_CHARACTERS


def test_a_value_costs_no_more_than_its_bytes(tmp_path: Path) -> None:
    """NumPy gives every text of a list the room of the longest, 2 GB here; and millions of zeros take long to see."""
    texts = raw.array("", raw.STRING, 450, raw.text("x" * (1 << 20)) + raw.text("") * 449)[12:]
    zeros = raw.array("", raw.U8, 1 << 22, bytes(1 << 22))[12:]
    many = {f"qwen2.{key}": (raw.ARRAY, zeros) for key in list(NEUTRAL)[:8]}
    path, start = tmp_path / "m.gguf", time.process_time()
    for changes, told in (
        ({"tokenizer.ggml.token_type": (raw.ARRAY, texts)}, "token_type' is not 450 integers"),
        (many, "sp does not support"),
    ):
        hostile(path, "tiny-qwen2", **changes)
        tracemalloc.start()
        with pytest.raises(SpError, match=told):
            load(path, device="cpu")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * path.stat().st_size
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("rope_theta", "9" * 4000, "key rope_theta is a whole number of some 4000 digits; it must be finite"),
        ("hidden_size", "-" + "9" * 400, "key hidden_size is a whole number of some 400 digits; it must lie in"),
        ("hidden_size", "9" * 5000, "is not JSON"),
        ("rms_norm_eps", "NaN", "key rms_norm_eps is nan; it must be finite"),
        ("logit_scale", "1e300", "key logit_scale is 1e\\+300; it must be at most"),
        ("hidden_act", "[" * 900 + "]" * 900, r"key hidden_act is \[\[\[\[...\]\]\]\], which sp does not support"),
        ("rope_scaling", '"yarn"', "key rope_scaling is 'yarn'; an object is needed"),
        ("sliding_window", '"\\ud800\\u001b[2J"', r"is '\\ud800\\x1b\[2J'; it must be a whole number"),
        ("n", f'"{"y" * (1 << 20)}"', "describes no DFlash draft"),
    ],
)
def test_config_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    draft = fuzz_drafts.Checkpoint(find_draft_shape("dflash-tiny-qwen35"), tiny_target())
    draft.write(None, {(key,): value}, {})
    with pytest.raises(ModelError, match=told) as caught:
        draft.read()
    assert len(str(caught.value)) <= MOST_CHARACTERS


def test_a_header_larger_than_any_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"
    with path.open("wb") as file:
        file.write((MOST_HEADER + 1).to_bytes(8, "little"))
        file.truncate(MOST_HEADER + 100)
    with pytest.raises(ModelError, match="a header of 8,388,609 bytes"):
        SafetensorsFile.open(path)
    odd = json.dumps({"\u2028" * 50: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    path.write_bytes(len(odd).to_bytes(8, "little") + odd)
    with pytest.raises(ModelError, match=r"no model has a tensor '\\u2028.*\.\.\.; get the file again"):
        SafetensorsFile.open(path)
