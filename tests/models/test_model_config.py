"""ModelConfig and load_model: numbers read from metadata, and one-line errors that name file and key or tensor."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import VOCAB, rewritten, write_tiny

from sp.errors import ConfigError, ModelError
from sp.gguf import GGUFFile
from sp.models import DeltaConfig, ModelConfig, load_model, read_config
from sp.ops.rope import Rope
from sp.quant import F16


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file an architecture."""
    folder = tmp_path_factory.mktemp("tiny")
    return {arch: write_tiny(folder / f"{arch}.gguf", arch) for arch in ("qwen3", "qwen35")}


def test_qwen3_numbers(files) -> None:
    with GGUFFile.open(files["qwen3"]) as file:
        config = read_config(file)
    assert config == ModelConfig(
        architecture="qwen3", hidden=40, vocab=VOCAB, context=4096, ffn=(48,) * 3, kinds=("attention",) * 3,
        heads=6, kv_heads=2, head_dim=64, rope=Rope(1e6, 64), eps=pytest.approx(1e-6), gated=False, delta=None,
    )  # fmt: skip
    assert (config.layers, config.group, config.attention_layers) == (3, 3, (0, 1, 2))


def test_qwen35_numbers(files) -> None:
    with GGUFFile.open(files["qwen35"]) as file:
        config = read_config(file)
    assert config.kinds == ("delta", "delta", "attention") * 2
    assert config.delta == DeltaConfig(key_heads=2, value_heads=6, head_dim=16, conv_kernel=4)
    assert (config.delta.key_dim, config.delta.value_dim, config.delta.conv_dim) == (32, 96, 160)
    assert (config.rope.dim, config.gated, config.delta_layers) == (16, True, (0, 1, 3, 4))


def test_per_layer_feed_forward(files, tmp_path) -> None:
    narrow = {
        "blk.1.ffn_gate.weight": np.ones((8, 40), np.float32),
        "blk.1.ffn_up.weight": np.ones((8, 40), np.float32),
        "blk.1.ffn_down.weight": np.ones((40, 8), np.float32),
    }
    path = rewritten(files["qwen3"], tmp_path / "x.gguf", narrow, **{"qwen3.feed_forward_length": [48, 8, 48]})
    assert load_model(path).config.ffn == (48, 8, 48)


def test_context_can_be_overridden(files) -> None:
    assert load_model(files["qwen3"], context=10**6).config.context == 10**6
    with pytest.raises(ConfigError, match="context"):
        load_model(files["qwen3"], context=0)


REQUIRED = {
    "qwen3": ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
              "attention.layer_norm_rms_epsilon", "rope.freq_base", "attention.key_length"],
    "qwen35": ["ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"],
}  # fmt: skip


def complaint(path) -> str:
    """The message of the ModelError that loading `path` raises: one line that names the file."""
    with pytest.raises(ModelError) as caught:
        load_model(path)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("arch", "key"), [(arch, key) for arch, keys in REQUIRED.items() for key in keys])
def test_a_missing_key_is_named(arch, key, files, tmp_path) -> None:
    path = rewritten(files[arch], tmp_path / "broken.gguf", {}, **{f"{arch}.{key}": None})
    message = complaint(path)
    assert f"{arch}.{key}" in message
    assert "missing" in message


WRONG = [
    ("qwen3", "block_count", 0),
    ("qwen3", "block_count", 10**9),
    ("qwen3", "block_count", "three"),
    ("qwen3", "block_count", True),
    ("qwen3", "attention.head_count_kv", 4),
    ("qwen3", "attention.head_count_kv", 0),
    ("qwen3", "attention.head_count_kv", [2, 2]),
    ("qwen3", "attention.head_count_kv", [2, 1, 2]),
    ("qwen3", "attention.value_length", 32),
    ("qwen3", "attention.key_length", 2**31),
    ("qwen3", "rope.dimension_count", 63),
    ("qwen3", "rope.dimension_count", 66),
    ("qwen3", "rope.dimension_count", 0),
    ("qwen3", "rope.freq_base", 0.0),
    ("qwen3", "rope.freq_base", float("inf")),
    ("qwen3", "context_length", 0),
    ("qwen3", "rope.scaling.type", "longrope"),
    ("qwen3", "rope.scaling.factor", 0.5),
    ("qwen3", "attention.layer_norm_rms_epsilon", float("nan")),
    ("qwen3", "attention.layer_norm_rms_epsilon", -1.0),
    ("qwen3", "feed_forward_length", [48]),
    ("qwen3", "feed_forward_length", -3),
    ("qwen3", "nextn_predict_layers", 3),
    ("qwen35", "full_attention_interval", 0),
    ("qwen35", "full_attention_interval", 7),
    ("qwen35", "attention.recurrent_layers", [True, False]),
    ("qwen35", "attention.recurrent_layers", True),
    ("qwen35", "ssm.group_count", 4),
    ("qwen35", "ssm.inner_size", 97),
    ("qwen35", "ssm.conv_kernel", 0),
]


@pytest.mark.parametrize(("arch", "key", "value"), WRONG)
def test_a_senseless_value_is_named(arch, key, value, files, tmp_path) -> None:
    path = rewritten(files[arch], tmp_path / "broken.gguf", {}, **{f"{arch}.{key}": value})
    assert f"{arch}.{key}" in complaint(path)


@pytest.mark.parametrize("arch", ["granite", "glm4moe", None])
def test_an_unsupported_architecture_names_the_supported_ones(arch, files, tmp_path) -> None:
    path = rewritten(files["qwen3"], tmp_path / "other.gguf", {}, **{"general.architecture": arch})
    message = complaint(path)
    assert all(name in message for name in ("llama", "qwen2", "qwen3", "qwen35"))


TENSORS = [
    ("qwen3", "token_embd.weight"),
    ("qwen3", "output_norm.weight"),
    ("qwen3", "blk.1.attn_k.weight"),
    ("qwen3", "blk.2.ffn_norm.weight"),
    ("qwen35", "blk.0.ssm_a"),
    ("qwen35", "blk.3.ssm_conv1d.weight"),
    ("qwen35", "blk.5.attn_q_norm.weight"),
    ("qwen35", "blk.4.post_attention_norm.weight"),
]


@pytest.mark.parametrize(("arch", "name"), TENSORS)
def test_a_missing_or_misshapen_tensor_is_named(arch, name, files, tmp_path) -> None:
    assert name in complaint(rewritten(files[arch], tmp_path / "missing.gguf", {name: None}))
    with GGUFFile.open(files[arch]) as file:
        value = file.weight(name).dense()
    longer = np.concatenate([value, value[:1]], axis=0)
    if name == "token_embd.weight":  # its rows are the vocabulary; its columns must fit
        longer = np.concatenate([value, value[:, :1]], axis=1)
    message = complaint(rewritten(files[arch], tmp_path / "longer.gguf", {name: longer}))
    assert name in message
    assert str(longer.shape) in message


def test_a_tensor_without_a_place_is_refused_not_ignored(files, tmp_path) -> None:
    bias = {"blk.0.attn_q.bias": np.ones(384, np.float32)}
    assert "blk.0.attn_q.bias" in complaint(rewritten(files["qwen3"], tmp_path / "bias.gguf", bias))


def test_qwen3_next_style_tensors_are_refused(files, tmp_path) -> None:
    """An interleaved `ssm_ba` in place of alpha and beta belongs to another architecture with another head order."""
    swap = {"blk.0.ssm_alpha.weight": None, "blk.0.ssm_beta.weight": None, "blk.0.ssm_ba.weight": np.ones((12, 40))}
    assert "ssm_alpha" in complaint(rewritten(files["qwen35"], tmp_path / "next.gguf", swap))


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_matrices_stay_packed(arch, tmp_path) -> None:
    path = write_tiny(tmp_path / "half.gguf", arch, fmt=F16)
    with GGUFFile.open(path) as file:
        sizes = {name: (int(np.prod(info.shape)), len(info.shape)) for name, info in file.tensors.items()}
    packed = [size for name, (size, axes) in sizes.items() if axes > 1 and "conv1d" not in name]
    assert load_model(path).nbytes == sum(4 * size for size, _ in sizes.values()) - 2 * sum(packed)
