"""ModelConfig: every number a forward pass needs, read and checked from GGUF metadata alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from sp.errors import ModelError
from sp.models.keys import Keys
from sp.ops.rope import Rope

if TYPE_CHECKING:
    from sp.gguf import GGUFFile

ARCHITECTURES = ("qwen3", "qwen35")
LayerKind = Literal["attention", "delta"]


@dataclass(frozen=True)
class DeltaConfig:
    """Sizes of the Gated DeltaNet layers.

    Attributes
    ----------
    key_heads, value_heads : int
        Value head p reads key head ``p % key_heads``.
    head_dim : int
        Width of a key head and of a value head.
    conv_kernel : int
        Taps of the short convolution before the recurrence.
    """

    key_heads: int
    value_heads: int
    head_dim: int
    conv_kernel: int

    @property
    def key_dim(self) -> int:
        """Width of all q heads, and of all k heads."""
        return self.key_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model.

    Attributes
    ----------
    architecture : str
        ``"qwen3"`` or ``"qwen35"``.
    hidden, vocab, context : int
        Width of the residual stream, rows of the embedding, longest position + 1.
    ffn : tuple of int
        Feed-forward width of every layer.
    kinds : tuple of {"attention", "delta"}
        What mixes tokens in every layer. Multi-token-prediction blocks past the trunk are not counted.
    heads, kv_heads, head_dim : int
        Of the attention layers; ``head_dim`` need not be ``hidden / heads``.
    rope : Rope
    eps : float
    gated : bool
        Whether attention outputs pass a sigmoid gate (its rows lie beside the query rows).
    delta : DeltaConfig or None

    Examples
    --------
    >>> config = ModelConfig("qwen3", 1024, 151936, 40960, (3072,) * 28, ("attention",) * 28, 16, 8, 128,
    ...                      Rope(1e6, 128), 1e-6)
    >>> config.layers, config.group, config.attention_layers[:3]
    (28, 2, (0, 1, 2))
    """

    architecture: str
    hidden: int
    vocab: int
    context: int
    ffn: tuple[int, ...]
    kinds: tuple[LayerKind, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    eps: float
    gated: bool = False
    delta: DeltaConfig | None = None

    @property
    def layers(self) -> int:
        """Layers of the trunk."""
        return len(self.kinds)

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep keys and values."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "attention")

    @property
    def delta_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep a recurrent state."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "delta")

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> ModelConfig:
        """Read the configuration of `file`.

        Raises
        ------
        ModelError
            For an unsupported architecture, a missing or senseless key; the message names key and file.
        """
        arch = file.metadata.get("general.architecture")
        if arch not in ARCHITECTURES:
            raise ModelError(f"{file.path}: architecture {arch!r} is not supported; sp runs {', '.join(ARCHITECTURES)}")
        keys = Keys(str(arch), file.metadata, str(file.path))
        keys.forbid_rope_scaling()
        blocks = keys.count("block_count")
        if blocks > len(file.tensors):
            raise keys.error("block_count", f"is {blocks}, but the file has {len(file.tensors)} tensors")
        extra = keys.count("nextn_predict_layers", default=0, least=0)
        if extra >= blocks:
            raise keys.error("nextn_predict_layers", f"is {extra} of {blocks} blocks, which leaves no model")
        layers = blocks - extra
        hybrid = arch == "qwen35"
        recurrent = _recurrent(keys, layers) if hybrid else [False] * layers
        kinds: tuple[LayerKind, ...] = tuple("delta" if flag else "attention" for flag in recurrent)
        delta = _delta(keys) if "delta" in kinds else None
        with_attention = [i for i, kind in enumerate(kinds) if kind == "attention"]
        if not with_attention:
            raise keys.error("full_attention_interval", f"leaves none of {layers} layers with attention")
        hidden = keys.count("embedding_length")
        heads = keys.uniform("attention.head_count", layers, with_attention)
        kv_heads = keys.uniform("attention.head_count_kv", layers, with_attention, default=heads)
        if heads % kv_heads:
            raise keys.error("attention.head_count_kv", f"is {kv_heads}, which does not divide {heads} heads")
        even = None if hidden % heads else hidden // heads
        head_dim = keys.count("attention.key_length", default=even)
        value_dim = keys.count("attention.value_length", default=even)
        if value_dim != head_dim:
            raise keys.error("attention.value_length", f"is {value_dim}; sp needs the key length {head_dim}")
        rope_dim = keys.count("rope.dimension_count", default=head_dim)
        if rope_dim % 2 or rope_dim > head_dim:
            raise keys.error(
                "rope.dimension_count", f"is {rope_dim}; it must be even and at most the head's {head_dim}"
            )
        return cls(
            architecture=str(arch),
            hidden=hidden,
            vocab=_vocab(file),
            context=keys.count("context_length", most=1 << 40),
            ffn=tuple(keys.per_layer("feed_forward_length", layers)),
            kinds=kinds,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope=Rope(keys.real("rope.freq_base", above=1.0), rope_dim),
            eps=keys.real("attention.layer_norm_rms_epsilon", above=0.0),
            gated=hybrid,
            delta=delta,
        )


def _vocab(file: GGUFFile) -> int:
    """Rows of the embedding table."""
    info = file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing or no matrix; is this a language model?")
    return int(info.shape[0])


def _recurrent(keys: Keys, layers: int) -> list[bool]:
    """Which trunk layers are recurrent; the explicit list of newer files wins over the interval."""
    flags = keys.get("attention.recurrent_layers")
    if flags is not None:
        if not isinstance(flags, list | tuple | np.ndarray) or len(flags) < layers:
            raise keys.error("attention.recurrent_layers", f"is no list of at least {layers} flags")
        return [bool(flag) for flag in list(flags)[:layers]]
    interval = keys.count("full_attention_interval", default=4)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _delta(keys: Keys) -> DeltaConfig:
    """Sizes of the recurrent layers."""
    config = DeltaConfig(
        key_heads=keys.count("ssm.group_count"),
        value_heads=keys.count("ssm.time_step_rank"),
        head_dim=keys.count("ssm.state_size"),
        conv_kernel=keys.count("ssm.conv_kernel"),
    )
    if config.value_heads % config.key_heads:
        raise keys.error(
            "ssm.group_count", f"is {config.key_heads}, which does not divide {config.value_heads} value heads"
        )
    inner = keys.count("ssm.inner_size")
    if inner != config.value_dim:
        raise keys.error(
            "ssm.inner_size", f"is {inner}; {config.value_heads} heads x {config.head_dim} make {config.value_dim}"
        )
    return config
