"""Named model shapes: hyper-parameters, the tensors they imply and the metadata that tells of them.

A shape is all of a model but its numbers, so speed and memory can be measured with no weights to download.
``qwen3.6-27b`` and ``qwen3-0.6b`` are the published models; the tiny ones keep their traits (heads wider than
hidden / heads, three value heads a key head, partial RoPE) at a size that a test can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sp.errors import unknown_name
from sp.gguf.keys import Value
from sp.models.config import DeltaConfig, LayerKind, ModelConfig
from sp.models.file_type import tensor_format
from sp.ops.rope import Rope
from sp.quant import BlockFormat

TensorShapes = dict[str, tuple[int, ...]]
INTERVAL = 4  # every fourth layer of a hybrid attends


@dataclass(frozen=True)
class Shape:
    """A model without its weights.

    Attributes
    ----------
    name : str
    config : ModelConfig
    tied : bool
        Whether the embedding is also the output matrix.
    text_tokens : int
        Ordinary tokens of the vocabulary; special ones follow, then padding up to ``config.vocab``.
    """

    name: str
    config: ModelConfig
    tied: bool
    text_tokens: int

    def tensors(self) -> TensorShapes:
        """Every tensor's name and shape, fastest axis last, in file order."""
        c = self.config
        found: TensorShapes = {"token_embd.weight": (c.vocab, c.hidden)}
        for i, kind in enumerate(c.kinds):
            mixer = _attention(c) if kind == "attention" else _delta(c)
            found |= {f"blk.{i}.{name}": shape for name, shape in {**mixer, **_feed_forward(c, i)}.items()}
        found["output_norm.weight"] = (c.hidden,)
        if not self.tied:
            found["output.weight"] = (c.vocab, c.hidden)
        return found

    def metadata(self) -> dict[str, Value]:
        """The keys a loader reads, without tokenizer and file type."""
        c = self.config
        keys: dict[str, Value] = {
            "block_count": c.layers,
            "context_length": c.context,
            "embedding_length": c.hidden,
            "feed_forward_length": c.ffn[0],
            "attention.head_count": c.heads,
            "attention.head_count_kv": c.kv_heads,
            "attention.key_length": c.head_dim,
            "attention.value_length": c.head_dim,
            "attention.layer_norm_rms_epsilon": c.eps,
            "rope.freq_base": c.rope.base,
        }
        if c.delta is not None:
            pairs = c.rope.dim // 2  # shared out in turn to the three axes of M-RoPE; text uses one position for all
            sections = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]
            keys |= {
                "rope.dimension_count": c.rope.dim,
                "rope.dimension_sections": np.array(sections, np.int32),
                "full_attention_interval": INTERVAL,
                "ssm.conv_kernel": c.delta.conv_kernel,
                "ssm.state_size": c.delta.head_dim,
                "ssm.group_count": c.delta.key_heads,
                "ssm.time_step_rank": c.delta.value_heads,
                "ssm.inner_size": c.delta.value_dim,
            }
        named: dict[str, Value] = {"general.architecture": c.architecture, "general.name": f"{self.name} (synthetic)"}
        return named | {f"{c.architecture}.{key}": value for key, value in keys.items()}


def list_shapes() -> tuple[str, ...]:
    """Names `find_shape` knows.

    >>> list_shapes()
    ('qwen3-0.6b', 'qwen3.6-27b', 'tiny-qwen3', 'tiny-qwen35')
    """
    return tuple(sorted(_SHAPES))


def find_shape(name: str) -> Shape:
    """The shape called `name`; ConfigError with the nearest names when there is none.

    >>> find_shape("qwen3.6-27b").config.layers
    64
    """
    if name not in _SHAPES:
        raise unknown_name("shape", name, _SHAPES)
    return _SHAPES[name]


def tensor_plan(shape: str, file_type: str) -> list[tuple[str, tuple[int, ...], BlockFormat]]:
    """Name, shape and format of every tensor of a named shape, in file order.

    Raises
    ------
    ConfigError
        When the shape or the file type is unknown.

    Examples
    --------
    >>> plan = tensor_plan("qwen3.6-27b", "q4_k_m")
    >>> len(plan), sum(fmt.nbytes(size) for _, size, fmt in plan)
    (851, 16536406016)
    """
    found = find_shape(shape)
    layers, tied = found.config.layers, found.tied
    return [
        (name, size, tensor_format(file_type, name, size, layers=layers, tied=tied))
        for name, size in found.tensors().items()
    ]


def _attention(c: ModelConfig) -> TensorShapes:
    """Full attention; with a gate, each head has twice the query rows."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return {
        "attn_norm.weight": (c.hidden,),
        "attn_q.weight": ((1 + c.gated) * q, c.hidden),
        "attn_k.weight": (kv, c.hidden),
        "attn_v.weight": (kv, c.hidden),
        "attn_q_norm.weight": (c.head_dim,),
        "attn_k_norm.weight": (c.head_dim,),
        "attn_output.weight": (c.hidden, q),
    }


def _delta(c: ModelConfig) -> TensorShapes:
    """Gated DeltaNet."""
    assert c.delta is not None, f"{c.architecture} has recurrent layers but no sizes for them"
    d = c.delta
    return {
        "attn_norm.weight": (c.hidden,),
        "attn_qkv.weight": (d.conv_dim, c.hidden),
        "attn_gate.weight": (d.value_dim, c.hidden),
        "ssm_conv1d.weight": (d.conv_dim, d.conv_kernel),
        "ssm_alpha.weight": (d.value_heads, c.hidden),
        "ssm_beta.weight": (d.value_heads, c.hidden),
        "ssm_dt.bias": (d.value_heads,),
        "ssm_a": (d.value_heads,),
        "ssm_norm.weight": (d.head_dim,),
        "ssm_out.weight": (c.hidden, d.value_dim),
    }


def _feed_forward(c: ModelConfig, layer: int) -> TensorShapes:
    """SwiGLU and the norm before it, whose name differs by architecture."""
    norm = "ffn_norm.weight" if c.architecture == "qwen3" else "post_attention_norm.weight"
    return {
        norm: (c.hidden,),
        "ffn_gate.weight": (c.ffn[layer], c.hidden),
        "ffn_up.weight": (c.ffn[layer], c.hidden),
        "ffn_down.weight": (c.hidden, c.ffn[layer]),
    }


def _qwen3(hidden: int, vocab: int, ffn: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    kinds: list[LayerKind] = ["attention"] * layers
    return ModelConfig(
        "qwen3",
        hidden,
        vocab,
        40960,
        (ffn,) * layers,
        tuple(kinds),
        heads,
        kv_heads,
        head_dim,
        Rope(1e6, head_dim),
        1e-6,
    )


def _qwen35(
    hidden: int,
    vocab: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rope_dim: int,
    delta: DeltaConfig,
) -> ModelConfig:
    kinds: list[LayerKind] = ["delta" if (i + 1) % INTERVAL else "attention" for i in range(layers)]
    return ModelConfig(
        "qwen35",
        hidden,
        vocab,
        262144,
        (ffn,) * layers,
        tuple(kinds),
        heads,
        kv_heads,
        head_dim,
        Rope(1e7, rope_dim),
        1e-6,
        gated=True,
        delta=delta,
    )


_SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("qwen3-0.6b", _qwen3(1024, 151936, 3072, 28, 16, 8, 128), tied=True, text_tokens=151643),
        Shape(
            "qwen3.6-27b",
            _qwen35(5120, 248320, 17408, 64, 24, 4, 256, 64, DeltaConfig(16, 48, 128, 4)),
            tied=False,
            text_tokens=248044,
        ),
        Shape("tiny-qwen3", _qwen3(256, 2048, 768, 4, 4, 2, 128), tied=True, text_tokens=2000),
        Shape(
            "tiny-qwen35",
            _qwen35(256, 2048, 768, 4, 4, 2, 256, 64, DeltaConfig(2, 6, 128, 4)),
            tied=False,
            text_tokens=2000,
        ),
    )
}
