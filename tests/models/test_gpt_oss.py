"""gpt-oss: what its keys say and what is refused; its logits are held to transformers in test_parity.py."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from parity import fixture
from tiny_models import rewritten

from sp.errors import ConfigError, ModelError
from sp.gguf import GGUFFile, chat_template
from sp.models import load_model, prefill
from sp.models.families.base import find_architecture, read_config
from sp.models.families.gpt_oss import ExactYarn, exact
from sp.models.file.metadata_keys import Keys
from sp.models.file.rope_keys import RopeScaling, rope_facts
from sp.models.layer.spec import LayerSpec
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.rope import Rope, YarnScaling
from sp.planning.inspect import inspect_file
from sp.planning.subject import shape_subject
from sp.prompt import Prompt

SPEC = find_architecture("gpt-oss").spec


def test_layers_take_turns() -> None:
    config = read_config(GGUFFile.open(fixture("gpt-oss")))
    assert config.windows == (24, None, 24)
    specs = [SPEC(config, layer) for layer in range(3)]
    assert [spec.window for spec in specs] == [24, None, 24]
    assert all(spec.rope is None and spec.out_bias and spec.expert_bias for spec in specs), "all turn as the model does"
    assert LayerSpec().expert_bias is False


def test_keys_come_back(tmp_path: Path) -> None:
    for more in ({}, {"gpt-oss.attention.sliding_window_pattern": 3}):
        file = GGUFFile.open(rewritten(fixture("gpt-oss"), tmp_path / f"{len(more)}.gguf", {}, **more))
        config, record = read_config(file), find_architecture("gpt-oss")
        assert [window is None for window in config.windows] == ([False, False, True] if more else [False, True, False])
        assert record.config(Keys("gpt-oss", record.keys(config), "again"), file) == config


def test_yarn_is_not_rounded_to_whole_pairs() -> None:
    """Between its edges a pair keeps a share of its frequency that falls linearly with the number of the pair."""
    rope = find_shape("gpt-oss-20b").config.rope
    assert isinstance(rope.scaling, ExactYarn)
    plain = np.array([15e4 ** (-pair / 32) for pair in range(32)])
    fast, slow = (32 * math.log(4096 / (2 * math.pi * turns)) / math.log(15e4) for turns in (32, 1))
    share = np.array([min(max((pair - fast) / (slow - fast), 0.0), 1.0) for pair in range(32)])
    np.testing.assert_allclose(rope.inverse_frequencies, plain * (1 - share) + plain * share / 32, rtol=1e-12)
    assert 0 < fast % 1 < 1
    assert 0 < slow % 1 < 1
    rounded = Rope(15e4, 64, scaling=YarnScaling(32.0, 4096)).inverse_frequencies
    assert 0.01 < np.abs(rope.inverse_frequencies / rounded - 1).max() < 0.5
    assert exact(Rope(1e4, 64)) == Rope(1e4, 64)
    assert rope_facts(rope)["scaling"] == "yarn"


def test_a_factor_may_be_asked_for() -> None:
    asked = RopeScaling("yarn", 64.0).applied(find_shape("gpt-oss-20b").config)
    assert asked.context == 64 * 4096
    assert asked.windows == find_shape("gpt-oss-20b").config.windows


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention.sliding_window": None}, "sliding_window is missing"),
        ({"rope.freq_base_swa": 1e4}, "freq_base_swa is not rope.freq_base, 150000"),
        ({"expert_used_count": 9}, "is 9 of 7 experts"),
        ({"expert_gating_func": 2}, "expert_gating_func is 2"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
    ],
)
def test_what_is_not_known_is_refused(keys: dict[str, object], said: str, tmp_path: Path) -> None:
    path = rewritten(fixture("gpt-oss"), tmp_path / "m.gguf", {}, **{f"gpt-oss.{key}": keys[key] for key in keys})
    with pytest.raises(ModelError, match=said):
        load_model(path)


@pytest.mark.parametrize(
    "name", ["attn_output.bias", "attn_q.bias", "ffn_gate_inp.bias", "ffn_gate_exps.bias", "ffn_down_exps.bias"]
)
def test_no_bias_may_be_missing_or_without_effect(name: str, tmp_path: Path) -> None:
    tensor = f"blk.1.{name}"
    with pytest.raises(ModelError, match=f"{tensor} is missing"):
        load_model(rewritten(fixture("gpt-oss"), tmp_path / "m.gguf", {tensor: None}))
    with GGUFFile.open(fixture("gpt-oss")) as file:
        values = file.weight(tensor).dense()
    changed = rewritten(fixture("gpt-oss"), tmp_path / "n.gguf", {tensor: values[..., ::-1].copy()})
    ids, found = np.arange(30), []
    for path in (fixture("gpt-oss"), changed):
        model = load_model(path)
        found.append(prefill(model, ids, ids, model.new_cache(30, "f32")))
    assert np.abs(found[0] - found[1]).max() > 1e-3 * np.abs(found[0]).max()


def test_inspect_tells_of_windows_and_experts(tmp_path: Path) -> None:
    family = inspect_file(write_synthetic(tmp_path / "m.gguf", "tiny-gpt-oss", "mxfp4_moe"))["family"]
    assert family["windows"] == {"tokens": 96, "layers": 2, "rope_base": 15e4}
    assert (family["kind"], family["experts"]["count"], family["experts"]["used"]) == ("attention", 8, 2)


def test_plans_say_that_experts_are_too_narrow_for_two_gpus() -> None:
    assert shape_subject("gpt-oss-20b", "mxfp4_moe").weights
    with pytest.raises(ConfigError, match="2 GPUs cannot share its matrices"):
        shape_subject("gpt-oss-20b", "mxfp4_moe", 2)


def test_a_chat_ends_where_the_answer_begins(tmp_path: Path) -> None:
    with GGUFFile.open(write_synthetic(tmp_path / "m.gguf", "tiny-gpt-oss", "mxfp4_moe")) as file:
        template = chat_template(file)
    assert template is not None
    prompt = Prompt.from_document("A quiet harbour.", "What is it?", template)
    assert prompt.text.startswith("<|start|>user<|message|>")
    assert prompt.text.endswith("<|end|><|start|>assistant")
