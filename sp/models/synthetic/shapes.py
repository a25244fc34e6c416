"""Named model shapes: hyper-parameters, the tensors they imply and the metadata that describes them.

A shape is everything of a model but its numbers, so speed and memory can be measured without downloading weights. Names
of published models have the sizes of their configurations on Hugging Face; the tiny ones keep their traits (heads wider
than hidden / heads, three value heads per key head, partial RoPE, factors of frequencies, seven query heads per key
head, rows of experts that are not whole blocks of 256) at a size that a test can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sp.arrays import Floats
from sp.errors import unknown_name
from sp.gguf import Value
from sp.models.config import DeltaConfig, ExpertConfig, HeadSizes, LayerKind, ModelConfig
from sp.models.families.base import find_architecture
from sp.models.families.gemma2 import EVERY as GEMMA2_EVERY
from sp.models.families.gemma2 import windowed as gemma2_windowed
from sp.models.families.gemma3 import EVERY as GEMMA3_EVERY
from sp.models.families.gemma3 import windowed
from sp.models.families.gemma4 import EVERY as GEMMA4_EVERY
from sp.models.families.gemma4 import LOCAL_BASE, quarter_turned, widened
from sp.models.families.gpt_oss import mixture
from sp.models.families.llama import llama3_factors
from sp.models.families.muse_glimmer import EVERY as MUSE_EVERY
from sp.models.families.muse_glimmer import windowed as muse_windowed
from sp.models.families.qwen3next import repeated
from sp.models.families.shared import every_window
from sp.models.file.file_type import tensor_format
from sp.models.file.weights import TensorSpec
from sp.models.network.weights import model_tensors
from sp.ops.attention.position_scale import PositionScale
from sp.ops.rope import LinearScaling, Rope, YarnScaling
from sp.quant import BlockFormat

Plan = list[tuple[str, tuple[int, ...], BlockFormat]]
"""Name, shape (fastest axis last) and format of tensors, in file order."""
INTERVAL = 4  # every fourth layer of a hybrid attends


@dataclass(frozen=True)
class ModelShape:
    """Shape of a model, without weights."""

    name: str
    config: ModelConfig
    tied: bool  # True if the embedding is also the output matrix
    text_tokens: int  # ordinary tokens of the vocabulary; special ones follow, then padding up to ``config.vocab``

    def tensors(self) -> list[TensorSpec]:
        """List every tensor, in file order."""
        vectors = [TensorSpec(name, values.shape, "vector") for name, values in self.config_tensors().items()]
        return vectors + model_tensors(self.config, () if self.tied else ("output.weight",))

    @property
    def usual_type(self) -> str:
        """Default file type of the family."""
        return find_architecture(self.config.architecture).usual_type

    def config_tensors(self) -> dict[str, Floats]:
        """Return the numbers of tensors that encode the configuration, see `Architecture.config_tensors`: not
        random."""
        inverses = find_architecture(self.config.architecture).config_tensors
        numbers = {name: values(self.config) for name, values in inverses.items()}
        return {name: values for name, values in numbers.items() if values is not None}

    def fixed_tensors(self) -> dict[str, Floats]:
        """Return the numbers of tensors that are not random: `config_tensors`, and query norms of layers that do not
        scale their scores. Such a model has learnt the scale; with random norms attention weights would depend on the
        last bit of a score."""
        record, numbers = find_architecture(self.config.architecture), self.config_tensors()
        for layer in self.config.attention_layers:
            spec, width = record.spec(self.config, layer), self.config.heads_of(layer).head_dim
            if spec.qk_norm and spec.scale == 1:
                numbers[f"blk.{layer}.attn_q_norm.weight"] = np.full(width, width**-0.5, np.float32)
        return numbers

    def plan(self, file_type: str) -> Plan:
        """Return name, shape and format of every tensor, in file order; ConfigError for an unknown file type."""
        return tensor_formats(self.tensors(), file_type, self.config.layers, tied=self.tied)

    def metadata(self) -> dict[str, Value]:
        """Return the keys that a loader reads, without tokenizer and file type."""
        record = find_architecture(self.config.architecture)
        named: dict[str, Value] = {"general.architecture": record.name, "general.name": f"{self.name} (synthetic)"}
        return named | record.keys(self.config)


def tensor_formats(tensors: list[TensorSpec], file_type: str, layers: int, *, tied: bool) -> Plan:
    """Return name, shape and format of tensors in a file of that type."""
    return [
        (spec.name, spec.shape, tensor_format(file_type, spec.name, spec.shape, layers=layers, tied=tied))
        for spec in tensors
    ]


def list_shapes() -> tuple[str, ...]:
    """List the names that `find_shape` accepts."""
    return tuple(sorted(_SHAPES))


def find_shape(name: str) -> ModelShape:
    """Return the shape called `name`; ConfigError with the nearest names if there is none."""
    if name not in _SHAPES:
        raise unknown_name("shape", name, _SHAPES)
    return _SHAPES[name]


def type_of_shape(shape: str, named: str | None) -> str:
    """Return the file type `named`, or else the default of a shape; ConfigError if the shape is unknown.

    >>> type_of_shape("gpt-oss-20b", None), type_of_shape("gpt-oss-20b", "bf16"), type_of_shape("qwen3-0.6b", None)
    ('mxfp4_moe', 'bf16', 'q4_k_m')
    """
    return named or find_shape(shape).usual_type


def tensor_plan(shape: str, file_type: str) -> Plan:
    """Return name, shape and format of every tensor of a named shape, in file order. ConfigError if the shape or the
    file type is unknown."""
    return find_shape(shape).plan(file_type)


def _dense(
    architecture: str,
    hidden: int,
    vocab: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rope: Rope,
    context: int,
    eps: float = 1e-6,
) -> ModelConfig:
    kinds: list[LayerKind] = ["attention"] * layers
    widths = (ffn,) * layers
    return ModelConfig(architecture, hidden, vocab, context, widths, tuple(kinds), heads, kv_heads, head_dim, rope, eps)


def _qwen3(hidden: int, vocab: int, ffn: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    return _dense("qwen3", hidden, vocab, ffn, layers, heads, kv_heads, head_dim, Rope(1e6, head_dim), 40960)


def _qwen2(hidden: int, vocab: int, ffn: int, layers: int, heads: int, kv_heads: int) -> ModelConfig:
    d = hidden // heads
    return _dense("qwen2", hidden, vocab, ffn, layers, heads, kv_heads, d, Rope(1e6, d), 32768)


def _llama3(
    hidden: int, vocab: int, ffn: int, layers: int, heads: int, kv_heads: int, head_dim: int, factor: float
) -> ModelConfig:
    rope = Rope(5e5, head_dim, "interleaved", llama3_factors(5e5, head_dim, factor))
    return _dense("llama", hidden, vocab, ffn, layers, heads, kv_heads, head_dim, rope, 131072, 1e-5)


def _mistral3(
    hidden: int,
    vocab: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    base: float,
    yarn: YarnScaling,
) -> ModelConfig:
    context = int(yarn.original_context * yarn.factor)
    rope = Rope(base, head_dim, "interleaved", yarn)
    dense = _dense("mistral3", hidden, vocab, ffn, layers, heads, kv_heads, head_dim, rope, context, 1e-5)
    return replace(dense, query_growth=PositionScale(float(np.float32(0.1)), yarn.original_context))  # as files hold it


def _gemma3(
    hidden: int, vocab: int, ffn: int, layers: int, heads: int, kv_heads: int, head_dim: int, window: int, context: int
) -> ModelConfig:
    rope = Rope(1e6, head_dim, scaling=LinearScaling(8.0) if context > 32768 else None)
    dense = _dense("gemma3", hidden, vocab, ffn, layers, heads, kv_heads, head_dim, rope, context)
    return windowed(dense, every_window(layers, window, GEMMA3_EVERY))


def _gemma2(
    hidden: int,
    vocab: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int = 4096,
) -> ModelConfig:
    dense = _dense("gemma2", hidden, vocab, ffn, layers, heads, kv_heads, head_dim, Rope(1e4, head_dim), 8192)
    return gemma2_windowed(dense, every_window(layers, window, GEMMA2_EVERY))


def _gemma4(
    hidden: int, vocab: int, ffn: int, layers: int, near: HeadSizes, others: HeadSizes, window: int, context: int
) -> ModelConfig:
    rope = Rope(1e6, others.head_dim, scaling=quarter_turned(others.head_dim))
    dense = _dense("gemma4", hidden, vocab, ffn, layers, near.heads, near.kv_heads, near.head_dim, rope, context)
    local = Rope(LOCAL_BASE, near.head_dim)
    config = widened(dense, every_window(layers, window, GEMMA4_EVERY), near, others, local)
    return replace(config, final_softcap=30.0, output_scales=True)


def _muse_glimmer(
    hidden: int, vocab: int, ffn: int, layers: int, heads: int, kv_heads: int, head_dim: int, window: int, scale: float
) -> ModelConfig:
    rope = Rope(5e5, head_dim, "interleaved")
    dense = _dense("muse-glimmer", hidden, vocab, ffn, layers, heads, kv_heads, head_dim, rope, 131072, 1e-5)
    config = muse_windowed(dense, every_window(layers, window, MUSE_EVERY))
    return replace(config, logit_scale=scale, final_softcap=20.0)


def _gpt_oss(
    hidden: int, vocab: int, layers: int, heads: int, kv_heads: int, window: int, experts: ExpertConfig
) -> ModelConfig:
    yarn = YarnScaling(32.0, 4096)
    rope = Rope(15e4, 64, scaling=yarn, magnitude=yarn.attention_factor)
    return mixture(
        _dense("gpt-oss", hidden, vocab, 0, layers, heads, kv_heads, 64, rope, 131072, 1e-5), experts, window
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
    base: float = 1e7,
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
        Rope(base, rope_dim),
        1e-6,
        gated=True,
        delta=delta,
    )


def _mixture(name: str, dense: ModelConfig, experts: ExpertConfig) -> ModelConfig:
    """Return the configuration with experts in every layer."""
    return replace(dense, architecture=name, ffn=(experts.active,) * dense.layers, experts=experts)


_LLAMA = {"text_tokens": 128000}
_QWEN = {"text_tokens": 151643}
_GEMMA = {"text_tokens": 256000}
_MISTRAL = {"text_tokens": 130072}
_MINISTRAL = YarnScaling(16.0, 16384)
_TINY = {"text_tokens": 2000}
_HARMONY = {"text_tokens": 199998}
_SHAPES: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("llama-3.1-70b", _llama3(8192, 128256, 28672, 80, 64, 8, 128, 8.0), tied=False, **_LLAMA),
        ModelShape("llama-3.1-8b", _llama3(4096, 128256, 14336, 32, 32, 8, 128, 8.0), tied=False, **_LLAMA),
        ModelShape("llama-3.2-3b", _llama3(3072, 128256, 8192, 28, 24, 8, 128, 32.0), tied=True, **_LLAMA),
        ModelShape("llama-3.2-1b", _llama3(2048, 128256, 8192, 16, 32, 8, 64, 32.0), tied=True, **_LLAMA),
        ModelShape("qwen2.5-32b", _qwen2(5120, 152064, 27648, 64, 40, 8), tied=False, **_QWEN),
        ModelShape("qwen2.5-7b", _qwen2(3584, 152064, 18944, 28, 28, 4), tied=False, **_QWEN),
        ModelShape("qwen2.5-0.5b", _qwen2(896, 151936, 4864, 24, 14, 2), tied=True, **_QWEN),
        ModelShape("qwen3-0.6b", _qwen3(1024, 151936, 3072, 28, 16, 8, 128), tied=True, **_QWEN),
        ModelShape(
            "qwen3.5-0.8b",
            _qwen35(1024, 248320, 3584, 24, 8, 2, 256, 64, DeltaConfig(16, 16, 128, 4)),
            tied=True,
            text_tokens=248044,
        ),
        ModelShape(
            "qwen3.6-27b",
            _qwen35(5120, 248320, 17408, 64, 24, 4, 256, 64, DeltaConfig(16, 48, 128, 4)),
            tied=False,
            text_tokens=248044,
        ),
        ModelShape(
            "qwen3.6-35b-a3b",
            _mixture(
                "qwen35moe",
                _qwen35(2048, 248320, 0, 40, 16, 2, 256, 64, DeltaConfig(16, 32, 128, 4)),
                ExpertConfig(256, 8, 512, 512),
            ),
            tied=False,
            text_tokens=248044,
        ),
        ModelShape(
            "qwen3-30b-a3b",
            _mixture("qwen3moe", _qwen3(2048, 151936, 0, 48, 32, 4, 128), ExpertConfig(128, 8, 768)),
            tied=False,
            **_QWEN,
        ),
        ModelShape("gemma-2-27b", _gemma2(4608, 256000, 36864, 46, 32, 16, 128), tied=True, **_GEMMA),
        ModelShape("gemma-2-9b", _gemma2(3584, 256000, 14336, 42, 16, 8, 256), tied=True, **_GEMMA),
        ModelShape("gemma-2-2b", _gemma2(2304, 256000, 9216, 26, 8, 4, 256), tied=True, **_GEMMA),
        ModelShape("gemma-3-27b", _gemma3(5376, 262144, 21504, 62, 32, 16, 128, 1024, 131072), tied=True, **_GEMMA),
        ModelShape("gemma-3-12b", _gemma3(3840, 262144, 15360, 48, 16, 8, 256, 1024, 131072), tied=True, **_GEMMA),
        ModelShape("gemma-3-270m", _gemma3(640, 262144, 2048, 18, 4, 1, 256, 512, 32768), tied=True, **_GEMMA),
        ModelShape(
            "gemma-4-31b",
            _gemma4(
                5376, 262144, 21504, 60, HeadSizes(32, 16, 256), HeadSizes(32, 4, 512, own_values=False), 1024, 262144
            ),
            tied=True,
            **_GEMMA,
        ),
        ModelShape(
            "gemma-4-12b",
            _gemma4(
                3840, 262144, 15360, 48, HeadSizes(16, 8, 256), HeadSizes(16, 1, 512, own_values=False), 1024, 262144
            ),
            tied=True,
            **_GEMMA,
        ),
        ModelShape(
            "tiny-gemma4",
            _gemma4(256, 2048, 768, 7, HeadSizes(4, 2, 256), HeadSizes(4, 1, 512, own_values=False), 96, 32768),
            tied=True,
            **_TINY,
        ),
        ModelShape(
            "devstral-small-2",
            _mistral3(5120, 131072, 32768, 40, 32, 8, 128, 1e8, YarnScaling(48.0, 8192, beta_fast=4.0)),
            tied=False,
            **_MISTRAL,
        ),
        ModelShape(
            "ministral-3-14b", _mistral3(5120, 131072, 16384, 40, 32, 8, 128, 1e9, _MINISTRAL), tied=False, **_MISTRAL
        ),
        ModelShape(
            "ministral-3-8b", _mistral3(4096, 131072, 14336, 34, 32, 8, 128, 1e6, _MINISTRAL), tied=False, **_MISTRAL
        ),
        ModelShape(
            "ministral-3-3b", _mistral3(3072, 131072, 9216, 26, 32, 8, 128, 1e6, _MINISTRAL), tied=True, **_MISTRAL
        ),
        ModelShape(
            "tiny-mistral3", _mistral3(256, 2048, 768, 4, 4, 2, 128, 1e6, YarnScaling(16.0, 512)), tied=True, **_TINY
        ),
        ModelShape(
            "muse-glimmer-30b",
            _muse_glimmer(6656, 202048, 19968, 52, 32, 2, 128, 2048, float(np.float32((6656 / 256) ** -0.5))),
            tied=False,
            text_tokens=200000,
        ),
        ModelShape("tiny-muse-glimmer", _muse_glimmer(256, 2048, 768, 4, 32, 2, 128, 96, 0.5), tied=False, **_TINY),
        ModelShape("tiny-gemma2", _gemma2(256, 2048, 768, 4, 4, 2, 128, 96), tied=True, **_TINY),
        ModelShape(
            "gpt-oss-120b", _gpt_oss(2880, 201088, 36, 64, 8, 128, ExpertConfig(128, 4, 2880)), tied=False, **_HARMONY
        ),
        ModelShape(
            "gpt-oss-20b", _gpt_oss(2880, 201088, 24, 64, 8, 128, ExpertConfig(32, 4, 2880)), tied=False, **_HARMONY
        ),
        ModelShape(
            "tiny-gpt-oss",
            _gpt_oss(320, 2048, 4, 4, 2, 96, ExpertConfig(8, 2, 192)),
            tied=False,
            **_TINY,
        ),
        ModelShape("tiny-gemma3", _gemma3(256, 2048, 768, 7, 4, 2, 128, 96, 32768), tied=True, **_TINY),
        ModelShape("tiny-llama", _llama3(256, 2048, 768, 4, 8, 2, 64, 8.0), tied=False, **_TINY),
        ModelShape("tiny-qwen2", _qwen2(448, 2048, 768, 4, 7, 1), tied=True, **_TINY),
        ModelShape("tiny-qwen3", _qwen3(256, 2048, 768, 4, 4, 2, 128), tied=True, **_TINY),
        ModelShape(
            "tiny-qwen3moe",
            _mixture("qwen3moe", _qwen3(256, 2048, 0, 4, 4, 2, 128), ExpertConfig(8, 2, 256)),
            tied=False,
            **_TINY,
        ),
        ModelShape(
            "tiny-qwen35moe",
            _mixture(
                "qwen35moe",
                _qwen35(256, 2048, 0, 4, 4, 2, 256, 64, DeltaConfig(2, 4, 128, 4)),
                ExpertConfig(16, 4, 256, 256),
            ),
            tied=False,
            **_TINY,
        ),
        ModelShape(
            "qwen3-coder-next",
            _mixture(
                "qwen3next",
                _qwen35(2048, 151936, 0, 48, 16, 2, 256, 64, repeated(DeltaConfig(16, 32, 128, 4)), 5e6),
                ExpertConfig(512, 10, 512, 512),
            ),
            tied=False,
            **_QWEN,
        ),
        ModelShape(
            "tiny-qwen3next",
            _mixture(
                "qwen3next",
                _qwen35(256, 2048, 0, 4, 4, 2, 256, 64, repeated(DeltaConfig(2, 4, 128, 4))),
                ExpertConfig(16, 4, 256, 256),
            ),
            tied=False,
            **_TINY,
        ),
        ModelShape(
            "tiny-qwen35", _qwen35(256, 2048, 768, 4, 4, 2, 256, 64, DeltaConfig(2, 6, 128, 4)), tied=False, **_TINY
        ),
    )
}
