"""Sound files that are not for sp: one line each, by the command line too, with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_calls import call
from tiny_drafts import write_draft
from tiny_models import KEYS, rewritten, write_tiny

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models import ARCHITECTURES, load_model
from sp.models.drafts.dflash import load_draft
from sp.models.families.base import read_config
from sp.models.file.refusals import NEUTRAL
from sp.planning.inspect import inspect_file

ONE = np.ones((2, 40), np.float32)
ASKS: dict[str, Any] = {
    "logit_scale": 0.0625,
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "router_logit_softcapping": 30.0,
    "attention.scale": 0.015625,
    "attention.output_scale": 0.1,
    "attention.value_scale": 0.707,
    "attention.temperature_scale": 0.1,
    "attention.temperature_length": 8192,
    "attention.clamp_kqv": 8.0,
    "attention.max_alibi_bias": 8.0,
    "attention.sliding_window": 1024,
    "attention.shared_kv_layers": 20,
    "attention.causal": False,
    "attention.sinks": True,
    "use_parallel_residual": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "embedding_length_per_layer_input": 256,
    "expert_count": 8,
    "expert_gating_func": 2,
    "expert_weights_scale": 2.5,
    "expert_group_count": 8,
    "expert_group_used_count": 4,
    "leading_dense_block_count": 3,
    "moe_every_n_layers": 2,
    "interleave_moe_layer_step": 2,
}
"""Each key with a value that published models have: Granite, Gemma, Grok, MiMo, Mistral, DBRX, Falcon, gpt-oss,
DeepSeek, Llama 4."""


def test_every_key_that_changes_results_is_tried() -> None:
    assert ASKS.keys() == NEUTRAL.keys()


@pytest.mark.parametrize("arch", KEYS)
@pytest.mark.parametrize("key", ASKS)
def test_a_key_nobody_computes_is_refused(tmp_path: Path, arch: str, key: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch, **{key: ASKS[key]})
    with pytest.raises(ModelError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: key {arch}.{key} is ")
    assert message.endswith("use a dense model" if key == "expert_count" else "use a model without it")
    assert "\n" not in message


@pytest.mark.parametrize("key", ASKS)
def test_values_that_change_nothing_load(tmp_path: Path, key: str) -> None:
    for number, value in enumerate(NEUTRAL[key]):
        given = float(value) if isinstance(ASKS[key], float) else value
        assert load_model(write_tiny(tmp_path / f"{number}.gguf", "qwen3", **{key: given})).config.layers == 3


@pytest.mark.parametrize(
    "keys",
    [
        {"attention.scale": 0.125},  # heads of 64
        {"attention.sliding_window": 4096},  # of a context of 4096
        {"attention.shared_kv_layers": [0, 0, 0]},
    ],
)
def test_what_says_only_the_usual_loads(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert load_model(write_tiny(tmp_path / "m.gguf", "qwen3", **keys)).config.layers == 3


def test_a_family_may_honour_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from sp.models.families import base

    path = write_tiny(tmp_path / "m.gguf", "qwen3", logit_scale=0.5)
    monkeypatch.setitem(base._records, "qwen3", replace(ARCHITECTURES["qwen3"], honours=("logit_scale",)))
    with GGUFFile.open(path) as file:
        assert read_config(file).layers == 3


def prediction_block(arch: str, block: int) -> dict[str, np.ndarray]:
    """Tensors of a multi-token-prediction block, as converters name them."""
    parts = ("eh_proj", "enorm", "hnorm", "shared_head_norm")
    return {f"blk.{block}.nextn.{part}.weight": ONE for part in parts} | {f"blk.{block}.attn_q.weight": ONE}


@pytest.mark.parametrize("arch", KEYS)
def test_a_trunk_loads_without_its_prediction_block(tmp_path: Path, arch: str) -> None:
    plain, layers = write_tiny(tmp_path / "m.gguf", arch), KEYS[arch]["block_count"]
    keys = {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    path = rewritten(plain, tmp_path / "mtp.gguf", prediction_block(arch, layers), **keys)
    model = load_model(path)
    assert model.config.layers == layers
    np.testing.assert_array_equal(model.weights.output_norm, load_model(plain).weights.output_norm)


def refused_files(folder: Path) -> dict[str, tuple[Path, str, str]]:
    """Files by what they are: path, what the line says of it, and what it says to do."""
    tiny = write_tiny(folder / "tiny.gguf", "qwen35")
    with GGUFFile.open(tiny) as file:
        config = read_config(file)
        weights = {name: None for name in file.tensors if name.startswith("blk.")}
    block = {"qwen35.block_count": 7, "qwen35.nextn_predict_layers": 1}

    def named(name: str, architecture: str, **keys: object) -> Path:
        return rewritten(tiny, folder / name, {}, **{"general.architecture": architecture}, **keys)

    def draft(name: str, **changes: Any) -> Path:
        (folder / name).mkdir()
        return write_draft(folder / name, "dflash", config, (1, 4), **changes)

    take = "use a model of one of them"
    return {
        "mtp": (
            rewritten(tiny, folder / "mtp-tiny.gguf", {**weights, **prediction_block("qwen35", 6)}, **block),
            "holds multi-token prediction alone (blk.6.nextn)",
            "use the whole model",
        ),
        "glm4moe": (named("moe.gguf", "glm4moe"), "architecture 'glm4moe' (a mixture of experts)", take),
        "deepseek2": (named("deep.gguf", "deepseek2"), "architecture 'deepseek2' (a mixture of experts)", take),
        "granite": (named("granite.gguf", "granite"), "architecture 'granite' is not supported; sp runs ", take),
        "phi3": (named("phi.gguf", "phi3"), "architecture 'phi3' is not supported", take),
        "clip": (named("mmproj.gguf", "clip"), "'clip' (an encoder of pictures or sound, not a language model)", take),
        "experts": (
            write_tiny(folder / "mixtral.gguf", "qwen3", expert_count=8),
            "qwen3.expert_count is 8, a mixture of experts",
            "use a dense model",
        ),
        "softcap": (
            write_tiny(folder / "capped.gguf", "qwen3", final_logit_softcapping=30.0),
            "qwen3.final_logit_softcapping is 30",
            "use a model without it",
        ),
        "dflash": (draft("first"), "a DFlash draft, not a model by itself", "pass it with --speculator"),
    }


def later_drafts(folder: Path) -> dict[str, tuple[Path, str, str]]:
    """The same of files that are given as drafts."""
    files = refused_files(folder)
    with GGUFFile.open(folder / "tiny.gguf") as file:
        config = read_config(file)

    def draft(name: str, **changes: Any) -> Path:
        (folder / name).mkdir()
        return write_draft(folder / name, "dflash", config, (1, 4), **changes)

    return {
        "mtp": files["mtp"],
        "dflash2": (draft("two", extra=("blk.0.ffn_conv_base",)), "is a DFlash2 draft", "or omit --speculator and"),
        "dspark": (draft("spark", extra=("markov_w2.weight",)), "is a DSpark draft", "or omit --speculator and"),
        "model": (folder / "tiny.gguf", "'qwen35' is no DFlash draft that sp reads", "use the draft that was made for"),
    }


@pytest.mark.parametrize(
    ("arch", "missing"),
    [
        ("gemma3n", "embeddings of every layer, AltUp and layers that share keys"),
        ("laguna", "softplus gates, other numbers of heads by layer and sigmoid routers"),
        ("qwen4exp", "hyper-connections, an indexer of keys and embeddings of n-grams"),
        ("deepseek4", "hyper-connections and compressed attention"),
        ("deepseek41", "hyper-connections and compressed attention"),
        ("glm-dsa", "latent attention and an indexer of keys"),
        ("glm5next", "latent attention and an indexer of keys"),
        ("minimax-m3", "an indexer of keys and sigmoid routers"),
        ("nemotron_h_moe", "layers of Mamba-2 and latent experts"),
    ],
)
def test_what_a_family_lacks_is_named(arch: str, missing: str, tmp_path: Path) -> None:
    if arch in ARCHITECTURES:
        pytest.skip(f"{arch} is a family")
    tiny = write_tiny(tmp_path / "tiny.gguf", "qwen3")
    keys = {"general.architecture": arch}
    path = rewritten(tiny, tmp_path / "m.gguf", {}, **keys)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    said = str(caught.value)
    assert missing in said
    assert "which sp does not support) is not supported; sp runs" in said
    assert "\n" not in said


def test_an_architecture_that_is_an_array_is_refused_everywhere(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf", "qwen3")
    path = rewritten(tiny, tmp_path / "m.gguf", {}, **{"general.architecture": np.arange(3, dtype=np.int32)})
    assert any("is not supported; sp runs" in line for line in inspect_file(path)["warnings"])
    with pytest.raises(ModelError, match="is not supported; sp runs"):
        load_model(path)
    with pytest.raises(ModelError, match="is no DFlash draft"):
        load_draft(path, load_model(tiny))


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize("option", ["--target", "--drafter"])
def test_commands_refuse_models_in_one_line(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    every = (command, option) in (("run", "--target"), ("serve", "--drafter"))  # one reader opens all of them
    for what, (path, told, advice) in list(refused_files(tmp_path).items())[: None if every else 2]:
        port = ["--port", "0"] if command == "serve" else []
        assert call(command, option, path, "--device", "cpu", *port, monkeypatch=monkeypatch) == 2, what
        error = capsys.readouterr().err
        assert error.startswith(f"sp: error: {path}: "), (what, error)
        assert error.count("\n") == 1, error
        assert told in error, (what, error)
        assert advice in error, (what, error)


@pytest.mark.parametrize("command", ["run", "serve"])
def test_commands_refuse_drafts_in_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for what, (path, told, advice) in later_drafts(tmp_path).items():
        port = ["--port", "0"] if command == "serve" else []
        asked = command, "--decode", "dflash", "--speculator", path, "--device", "cpu", *port
        assert call(*asked, monkeypatch=monkeypatch) == 2, what
        error = capsys.readouterr().err
        assert error.startswith(f"sp: error: {path}: "), (what, error)
        assert error.count("\n") == 1, error
        assert told in error, (what, error)
        assert advice in error, (what, error)


def test_inspect_tells_the_same_as_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    (more := tmp_path / "more").mkdir()
    for what, (path, told, advice) in {**later_drafts(tmp_path), **refused_files(more)}.items():
        if what == "model":
            continue
        assert call("inspect", path, monkeypatch=monkeypatch) == (0 if what == "dflash" else 2), what
        shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
        assert any(told in line and advice in line for line in shown), (what, shown)


def test_the_exit_status_of_a_plan_tells_files_that_no_command_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of inspect too, and what it tells of the file is printed all the same."""
    files = refused_files(tmp_path)
    path, told, _ = files["granite"]
    for command, title in (("inspect", "path"), ("plan", "verdict")):
        assert call(command, path, "--json", monkeypatch=monkeypatch) == 2
        found = json.loads(capsys.readouterr().out)
        assert found[title], command
        assert told in found["verdict"]["line"]
    assert call("inspect", path, "--json", monkeypatch=monkeypatch) == 2
    assert told in json.loads(capsys.readouterr().out)["refused"]
    draft = files["dflash"][0]
    assert call("plan", draft, monkeypatch=monkeypatch) == 1, "it does not run by itself, but beside its target"
    assert call("inspect", draft, "--json", monkeypatch=monkeypatch) == 0
    capsys.readouterr()
    late = later_drafts(tmp_path / "late") if (tmp_path / "late").mkdir() is None else {}
    assert call("inspect", late["dspark"][0], "--json", monkeypatch=monkeypatch) == 2
    assert json.loads(capsys.readouterr().out)["command"] is None
