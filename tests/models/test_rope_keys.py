"""Scaled RoPE from a file's keys: logits of transformers, llama.cpp's rules, the way back, and refusals in one line."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_drafts import write_draft
from tiny_models import rewritten, write_tiny

from sp.errors import ModelError
from sp.gguf import GGUFFile, GGUFWriter
from sp.models import decode_step, load_draft, load_model, prefill, read_config
from sp.models.families.base import find_architecture
from sp.models.file.metadata_keys import Keys, SketchKeys
from sp.models.file.rope_keys import read_rope, rope_metadata
from sp.models.file.weights import WeightStore
from sp.models.network.model import Model
from sp.models.network.weights import ModelWeights
from sp.ops.rope import LinearScaling, Rope, YarnScaling

FIXTURES = Path(__file__).parents[1] / "fixtures"
BAR = 1e-4  # relative root mean square of logits
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 1024, "yarn_beta_fast": 16.0}
CASES = {"qwen3-linear": {"type": "linear", "factor": 2.5}, "qwen3-yarn": YARN, "qwen35-yarn": YARN}


def scaled(arch: str, told: dict) -> dict:
    """Keys of a file."""
    return {f"{arch}.rope.scaling.{name}": value for name, value in told.items()}


def distance(found: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(((found - want) ** 2).mean() / (want**2).mean()))


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """(model, arrays, name) of a fixture."""
    arch = request.param.partition("-")[0]
    source = FIXTURES / f"parity-{arch}.gguf"
    path = rewritten(source, tmp_path / "scaled.gguf", {}, **scaled(arch, CASES[request.param]))
    made = np.load(FIXTURES / "parity-rope-scaling.npz")
    wanted = {part: made[f"{request.param}/{part}"] for part in ("logits", "decoded", "gapped_logits")}
    return load_model(path), dict(np.load(source.with_suffix(".npz"))) | wanted, request.param


def all_logits(model, ids, positions) -> np.ndarray:
    x, cache = model.embed(ids), model.new_cache(len(ids), "f32")
    for layer in range(model.config.layers):
        x = model.layer(layer, x, positions, cache)
    return model.head(x)


def test_logits_are_those_of_transformers(case) -> None:
    model, want, _ = case
    ids, n = want["ids"], int(want["prompt"])
    assert distance(all_logits(model, ids[:n], np.arange(n)), want["logits"]) < BAR
    assert distance(all_logits(model, ids[:n], want["gapped"]), want["gapped_logits"]) < BAR
    cache = model.new_cache(len(ids), "f32")
    prefill(model, ids[:n], np.arange(n), cache)
    decoded = [decode_step(model, int(ids[t]), t, cache) for t in range(n, len(ids))]
    assert distance(np.stack(decoded), want["decoded"]) < BAR


def test_every_part_of_the_scaling_matters(case) -> None:
    model, want, name = case
    n, rope = int(want["prompt"]), model.config.rope
    others = [replace(rope, scaling=None), replace(rope, scaling=replace(rope.scaling, factor=4.5))]
    if "yarn" in name:
        changes = [{"ext_factor": 0.5}]
        if name == "qwen3-yarn":  # edges are rounded to pairs, of which qwen35 has only four
            changes += [{"beta_fast": 4.0}, {"beta_slow": 4.0}, {"original_context": 4096}]
        others += [replace(rope, scaling=replace(rope.scaling, **change)) for change in changes]
        others += [replace(rope, magnitude=1.0), replace(rope, scaling=LinearScaling(4.0))]
    with GGUFFile.open(FIXTURES / f"parity-{name.partition('-')[0]}.gguf") as file:
        for other in others:
            config = replace(model.config, rope=other)
            store = WeightStore(file, config)
            changed = Model(config, ModelWeights.build(store), "cpu", store.nbytes)
            found = all_logits(changed, want["ids"][:n], want["gapped"])
            assert distance(found, want["gapped_logits"]) > 20 * BAR, other


def keys_of(told: dict, kind=Keys):
    return kind("qwen3", {"qwen3.rope.freq_base": 1e6} | {f"qwen3.rope.{k}": v for k, v in told.items()}, "m.gguf")


def read(told: dict, context: int = 40960) -> tuple[Rope, int]:
    return read_rope(keys_of(told), 128, context)


PLAIN = Rope(1e6, 128)
MSCALE = 1 + 0.1 * math.log(4)


@pytest.mark.parametrize(
    ("told", "want", "context"),
    [
        ({}, PLAIN, 40960),
        ({"scaling.type": "none", "scaling.factor": 8.0}, PLAIN, 40960),
        ({"scaling.type": "linear"}, PLAIN, 40960),
        ({"scaling.type": "linear", "scaling.factor": 0.0}, PLAIN, 40960),
        ({"scaling.factor": 1.0}, PLAIN, 40960),
        ({"scaling.factor": 2.0}, replace(PLAIN, scaling=LinearScaling(2.0)), 40960),
        ({"scaling.type": "linear", "scaling.factor": 2.0}, replace(PLAIN, scaling=LinearScaling(2.0)), 40960),
        ({"scale_linear": 4.0}, replace(PLAIN, scaling=LinearScaling(4.0)), 40960),
        ({"scale_linear": 4.0, "scaling.factor": 2.0}, replace(PLAIN, scaling=LinearScaling(2.0)), 40960),
        ({"scaling.attn_factor": 1.5}, replace(PLAIN, magnitude=1.5), 40960),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0},
            replace(PLAIN, scaling=YarnScaling(4.0, 40960), magnitude=MSCALE),
            40960,
        ),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32768},
            replace(PLAIN, scaling=YarnScaling(4.0, 32768), magnitude=MSCALE),
            131072,
        ),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.yarn_ext_factor": -1.0},
            replace(PLAIN, scaling=YarnScaling(4.0, 40960), magnitude=MSCALE),
            40960,
        ),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.yarn_ext_factor": 0.0},
            replace(PLAIN, scaling=YarnScaling(4.0, 40960, ext_factor=0.0)),
            40960,
        ),
        (  # DeepSeek-R1-0528-Qwen3-8B: its factor is neither llama.cpp's nor transformers' to read
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.yarn_attn_factor": 0.8782488562869419},
            replace(PLAIN, scaling=YarnScaling(4.0, 40960), magnitude=1.1386294361119891),
            40960,
        ),
        ({"scaling.factor": 2.0, "scaling.yarn_attn_factor": 0.5}, replace(PLAIN, scaling=LinearScaling(2.0)), 40960),
        (
            {"scaling.type": "yarn", "scaling.factor": 4, "scaling.yarn_beta_fast": 16, "scaling.attn_factor": 1.1},
            replace(PLAIN, scaling=YarnScaling(4.0, 40960, beta_fast=16.0), magnitude=MSCALE * 1.1),
            40960,
        ),
    ],
)
def test_keys_by_llama_cpps_rules(told, want, context) -> None:
    assert read(told) == (replace(want, magnitude=pytest.approx(want.magnitude)), context)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"scaling.type": "longrope"}, "rope.scaling.type is 'longrope'; sp supports none, linear and yarn"),
        ({"scaling.type": "dynamic", "scaling.factor": 2.0}, "rope.scaling.type is 'dynamic'"),
        ({"scaling.type": 2}, "rope.scaling.type is 2"),
        ({"scaling.type": ["yarn"]}, "rope.scaling.type is"),
        ({"scaling.type": "yarn"}, "rope.scaling.factor is missing"),
        ({"scaling.factor": 0.5}, "rope.scaling.factor is 0.5; it must lie in 1..4096"),
        ({"scaling.factor": 1e9}, "rope.scaling.factor is"),
        ({"scaling.factor": float("nan")}, "rope.scaling.factor is nan"),
        ({"scaling.factor": np.ones(3, np.float32)}, r"rope.scaling.factor is \[1.0, 1.0, 1.0\]; it must be a number"),
        ({"scale_linear": "2"}, "rope.scale_linear is '2'; it must be a number"),
        ({"scaling.attn_factor": 0.0}, "rope.scaling.attn_factor is"),
        ({"scaling.attn_factor": 1e30}, "rope.scaling.attn_factor is 1e\\+30"),
        ({"scaling.type": "yarn", "scaling.factor": 2.0, "scaling.original_context_length": 0}, "original_context_len"),
        ({"scaling.type": "yarn", "scaling.factor": 2.0, "scaling.yarn_ext_factor": 2.0}, "must lie in 0..1"),
        ({"scaling.type": "yarn", "scaling.factor": 2.0, "scaling.yarn_beta_fast": 1e300}, "yarn_beta_fast"),
        ({"scaling.type": "yarn", "scaling.factor": 2.0, "scaling.yarn_beta_slow": -1.0}, "yarn_beta_slow"),
        ({"scaling.type": "yarn", "scaling.factor": 2.0, "scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(told, message) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(told)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("m.gguf: key qwen3.rope.")


def test_two_scalings_are_refused() -> None:
    with pytest.raises(ModelError, match="only one"):
        read_rope(keys_of({"scaling.factor": 2.0}), 128, 4096, scaling=LinearScaling(8.0))
    other, _ = read_rope(keys_of({"scaling.type": "none"}), 128, 4096, scaling=LinearScaling(8.0))
    assert other.scaling == LinearScaling(8.0)


@given(
    st.dictionaries(
        st.sampled_from(
            ["type", "factor", "original_context_length", "attn_factor", "yarn_ext_factor", "yarn_attn_factor",
             "yarn_beta_fast", "yarn_beta_slow"]
        ),
        st.one_of(
            st.floats(), st.integers(-(1 << 64), 1 << 64), st.booleans(), st.sampled_from(["yarn", "linear", "x"]),
            st.just(np.zeros(3, np.int32)),
        ),
    ),
    st.integers(1, 1 << 40),
)  # fmt: skip
def test_hostile_keys_raise_nothing_else(told, context) -> None:
    named = {f"scaling.{name}": value for name, value in told.items()}
    for kind in (Keys, SketchKeys):
        try:
            rope, _ = read_rope(keys_of(named, kind), 64, context)
        except ModelError:
            assert kind is Keys
        else:
            assert rope.turn_fractions().shape == (32,)


ROPES = [
    Rope(1e6, 64),
    Rope(1e6, 64, scaling=LinearScaling(2.5)),
    Rope(1e6, 64, magnitude=1.25),
    Rope(1e6, 64, scaling=YarnScaling(4.0, 4096), magnitude=MSCALE),
    Rope(1e6, 64, scaling=YarnScaling(4.0, 1000, 0.5, 16.0, 2.0), magnitude=MSCALE * 0.75),
]


@pytest.mark.parametrize("rope", ROPES)
def test_what_is_written_is_read_again(rope, tmp_path) -> None:
    with GGUFFile.open(write_tiny(tmp_path / "m.gguf", "qwen3")) as file:
        context = 4 * 4096 if rope.scaling == YarnScaling(4.0, 4096) else 4096
        config = replace(read_config(file), rope=rope, context=context)
        writer = GGUFWriter(tmp_path / "again.gguf", find_architecture("qwen3").keys(config))
        for name, info in file.tensors.items():
            weight = file.weight(name)
            writer.add(name, info.shape, weight.format, weight.data)
        writer.write()
    with GGUFFile.open(tmp_path / "again.gguf") as file:
        assert read_config(file).rope == rope
        assert read_config(file).context == context


def test_an_unscaled_rope_writes_what_it_wrote() -> None:
    assert rope_metadata(Rope(1e6, 64)) == {"rope.freq_base": 1e6}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return load_model(write_tiny(tmp_path_factory.mktemp("target") / "t.gguf", "qwen35"))


def test_a_draft_is_scaled_as_its_file_says(target, tmp_path) -> None:
    told = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 32768,
    }
    of_gguf = load_draft(write_draft(tmp_path, "dflash", target.config, (1, 4), **told), target)
    published = {
        "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768, "attn_factor": 0.5,
    }  # fmt: skip
    of_checkpoint = load_draft(
        write_draft(tmp_path, "safetensors", target.config, (1, 4), rope_scaling=published), target
    )
    for draft in (of_gguf, of_checkpoint):  # transformers reads no attn_factor
        rope = draft.config.model.rope
        assert rope.scaling == YarnScaling(4.0, 32768)
        assert rope.magnitude == pytest.approx(MSCALE)
