"""qwen3next: Qwen3-Next and Qwen3-Coder-Next (80B-A3B): the hybrid of `qwen35moe` with another order of rows.

Files store the value heads of a key head consecutively (value head p reads key head ``p // repeat``), alpha and beta in
one matrix, key head by key head, and older files q, k, v and z as well. Steps and kernels pair value head p with key
head ``p % key_heads``. Key heads are therefore repeated here, one per value head: columns of the output projection,
which blocks of a format tie together, stay in place. Source: Qwen Team, Qwen3-Next, 2025; transformers,
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
    """Read the configuration, see `Architecture`."""
    config = qwen35moe_config(keys, file)
    return config if config.delta is None else replace(config, delta=repeated(config.delta))


def repeated(delta: DeltaConfig) -> DeltaConfig:
    """Return the sizes with one key head per value head.

    >>> repeated(DeltaConfig(16, 32, 128, 4))
    DeltaConfig(key_heads=32, value_heads=32, head_dim=128, conv_kernel=4, copies=2)
    """
    return replace(delta, key_heads=delta.value_heads, copies=delta.value_heads // delta.key_heads)


def qwen3next_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    delta = config.delta
    assert delta is not None, "a hybrid without delta sizes"
    metadata = qwen35_metadata(config) | {"ssm.group_count": delta.key_heads // delta.copies}
    del metadata["rope.dimension_sections"]  # positions have a single axis here
    return metadata


def qwen3next_layer(config: ModelConfig, index: int) -> LayerSpec:
    """Return the computation of a layer."""
    return LAYER if config.kinds[index] == "attention" else replace(LAYER, mixer=grouped_delta)


def grouped_delta(store: WeightSource, index: int) -> GatedDelta:
    """Build the recurrent mixer of a layer from rows in the order of these files."""
    c, hidden, blk = store.config.delta, store.config.hidden, f"blk.{index}."
    assert c is not None, "a delta layer without delta sizes"
    # The file has each key head once; `_channels` repeats its rows.
    keys, values = c.key_dim // c.copies, c.value_dim
    # Newer files store q | k | v and z in two tensors, older ones in one.
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
    """Return the rows of q | k | v, with those of q and k repeated.

    >>> _channels(DeltaConfig(2, 2, 1, 4, copies=2))
    array([0, 0, 1, 1, 2, 3])
    """
    keys = np.arange(c.key_dim // c.copies).reshape(-1, c.head_dim).repeat(c.copies, axis=0).ravel()
    return np.concatenate([keys, len(keys) // c.copies + keys, 2 * len(keys) // c.copies + np.arange(c.value_dim)])


def _split(c: DeltaConfig, parts: int, size: int, before: int = 0) -> list[Ints]:
    """Return the rows of each of several parts of a matrix that has, key head by key head, `before` rows and then the
    rows of each part: `size` per value head. All in the order of value heads."""
    rows_per_key_head = before + parts * c.copies * size
    rows = np.arange(c.key_heads // c.copies * rows_per_key_head).reshape(-1, rows_per_key_head)[:, before:]
    return [rows[:, part * c.copies * size : (part + 1) * c.copies * size].ravel() for part in range(parts)]


def _mixed(c: DeltaConfig) -> list[Ints]:
    """Return the rows of q | k | v, with those of q and k repeated, and of z, in a matrix that stores them key head by
    key head."""
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
