"""qwen3next: Qwen3-Next and Qwen3-Coder-Next (80B-A3B): the hybrid of `qwen35moe` in another order of rows.

Files hold the value heads of a key head one beside the other (value head p reads key head ``p // repeat``), alpha and
beta in one matrix, key head by key head, and older ones q, k, v and z as well. Steps and kernels pair value head p with
key head ``p % key_heads``; so key heads are repeated here, one for each value head: columns of the output, which
blocks of a format hold together, stay where they are. Source: Qwen Team, Qwen3-Next, 2025; transformers,
``models/qwen3_next``; keys and names: llama.cpp, ``src/models/qwen3next.cpp``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sp.arrays import Ints
from sp.gguf import Value
from sp.models.config import DeltaConfig, ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.qwen35 import LAYER, qwen35_metadata, qwen35moe_config
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile, WeightSource
from sp.models.layer.delta import GatedDelta
from sp.models.layer.spec import LayerSpec


def qwen3next_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """See `Architecture`."""
    config = qwen35moe_config(keys, file)
    return config if config.delta is None else replace(config, delta=repeated(config.delta))


def repeated(delta: DeltaConfig) -> DeltaConfig:
    """The same with a key head for every value head.

    >>> repeated(DeltaConfig(16, 32, 128, 4))
    DeltaConfig(key_heads=32, value_heads=32, head_dim=128, conv_kernel=4, copies=2)
    """
    return replace(delta, key_heads=delta.value_heads, copies=delta.value_heads // delta.key_heads)


def qwen3next_metadata(config: ModelConfig) -> dict[str, Value]:
    """See `Architecture`."""
    delta = config.delta
    assert delta is not None, "a hybrid without delta sizes"
    found = qwen35_metadata(config) | {"ssm.group_count": delta.key_heads // delta.copies}
    del found["rope.dimension_sections"]  # its positions have one axis
    return found


def qwen3next_layer(config: ModelConfig, index: int) -> LayerSpec:
    """What a layer computes."""
    return LAYER if config.kinds[index] == "attention" else replace(LAYER, mixer=grouped_delta)


def grouped_delta(store: WeightSource, index: int) -> GatedDelta:
    """The recurrent mixer of a layer, of rows as these files have them."""
    c, hidden, blk = store.config.delta, store.config.hidden, f"blk.{index}."
    assert c is not None, "a delta layer without delta sizes"
    keys, values = c.key_dim // c.copies, c.value_dim
    channels, apart, mixed = _channels(c), f"{blk}attn_qkv.weight", f"{blk}ssm_in.weight"
    if mixed in store:
        qkv, gate = store.picked(mixed, (2 * keys + 2 * values, hidden), _mixed(c))
    else:
        (qkv,) = store.picked(apart, (2 * keys + values, hidden), [channels])
        gate = store.matrix(f"{blk}attn_gate.weight", (values, hidden))
    beta, alpha = store.picked(f"{blk}ssm_ba.weight", (2 * c.value_heads, hidden), _split(c, 2, 1))
    return GatedDelta(
        index=index,
        sizes=c,
        qkv=qkv,
        gate=gate,
        alpha=alpha,
        beta=beta,
        out=store.matrix(f"{blk}ssm_out.weight", (hidden, values)),
        conv=store.table(f"{blk}ssm_conv1d.weight", (2 * keys + values, c.conv_kernel), channels),
        a=store.vector(f"{blk}ssm_a", c.value_heads),
        dt_bias=store.vector(f"{blk}ssm_dt.bias", c.value_heads),
        norm=store.vector(f"{blk}ssm_norm.weight", c.head_dim),
        eps=store.config.eps,
    )


def _channels(c: DeltaConfig) -> Ints:
    """Rows of q | k | v, those of q and k repeated.

    >>> _channels(DeltaConfig(2, 2, 1, 4, copies=2))
    array([0, 0, 1, 1, 2, 3])
    """
    keys = np.arange(c.key_dim // c.copies).reshape(-1, c.head_dim).repeat(c.copies, axis=0).ravel()
    return np.concatenate([keys, len(keys) // c.copies + keys, 2 * len(keys) // c.copies + np.arange(c.value_dim)])


def _split(c: DeltaConfig, parts: int, size: int, before: int = 0) -> list[Ints]:
    """Rows of so many parts of a matrix that has, key head by key head, `before` rows and then each part's: `size` of
    every value head. All in the order of value heads."""
    of_key = before + parts * c.copies * size
    rows = np.arange(c.key_heads // c.copies * of_key).reshape(-1, of_key)[:, before:]
    return [rows[:, part * c.copies * size : (part + 1) * c.copies * size].ravel() for part in range(parts)]


def _mixed(c: DeltaConfig) -> list[Ints]:
    """Rows of q | k | v, those of q and k repeated, and of z, of a matrix that has them key head by key head."""
    d = c.head_dim
    values, gate = _split(c, 2, d, 2 * d)
    first = np.arange(c.key_heads // c.copies) * (2 * d + 2 * c.copies * d)
    heads = first.repeat(c.copies)[:, None] + np.arange(d)
    return [np.concatenate([heads.ravel(), d + heads.ravel(), values]), gate]


register_architecture(
    Architecture(
        "qwen3next",
        qwen3next_layer,
        ("qwen2",),
        qwen3next_config,
        qwen3next_metadata,
        honours=("expert_count",),
        about="Qwen3-Next and Qwen3-Coder-Next, the hybrid with experts that came before Qwen3.5 (80B-A3B)",
    )
)
