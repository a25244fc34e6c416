"""ModelConfig: every number a forward pass needs, read and checked from GGUF metadata alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sp.errors import ModelError

if TYPE_CHECKING:
    from sp.gguf import GGUFFile

ARCHITECTURES = ("qwen3", "qwen35")
LayerKind = Literal["attention", "delta"]
MAX_SIZE = 1 << 24
"""No width, count or head size of a real model comes near; a larger one is a damaged file."""


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
    rope_dim : int
        Values of a head that RoPE turns; the rest pass through.
    rope_base, eps : float
    gated : bool
        Whether attention outputs pass a sigmoid gate (its rows lie beside the query rows).
    delta : DeltaConfig or None

    Examples
    --------
    >>> config = ModelConfig("qwen3", 1024, 151936, 40960, (3072,) * 28, ("attention",) * 28, 16, 8, 128, 128,
    ...                      1e6, 1e-6)
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
    rope_dim: int
    rope_base: float
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
        keys = _Keys(str(arch), file.metadata, str(file.path))
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
            rope_dim=rope_dim,
            rope_base=keys.real("rope.freq_base", above=1.0),
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


def _recurrent(keys: _Keys, layers: int) -> list[bool]:
    """Which trunk layers are recurrent; the explicit list of newer files wins over the interval."""
    flags = keys.get("attention.recurrent_layers")
    if flags is not None:
        if not isinstance(flags, list | tuple | np.ndarray) or len(flags) < layers:
            raise keys.error("attention.recurrent_layers", f"is no list of at least {layers} flags")
        return [bool(flag) for flag in list(flags)[:layers]]
    interval = keys.count("full_attention_interval", default=4)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _delta(keys: _Keys) -> DeltaConfig:
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


class _Keys:
    """Checked access to the keys of one architecture."""

    def __init__(self, arch: str, metadata: Mapping[str, Any], path: str) -> None:
        self.arch, self.metadata, self.path = arch, metadata, path

    def error(self, key: str, what: str) -> ModelError:
        return ModelError(f"{self.path}: key {self.arch}.{key} {what}")

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.arch}.{key}")

    def forbid_rope_scaling(self) -> None:
        """A file that asks for YaRN or linear scaling would run, and be wrong."""
        kind = self.get("rope.scaling.type")
        if kind not in (None, "none"):
            raise self.error("rope.scaling.type", f"is {kind!r}; sp supports unscaled RoPE only")

    def count(self, key: str, *, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number in [least, most]."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        return self._whole(key, value, least, most)

    def _whole(self, key: str, value: Any, least: int, most: int) -> int:
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise self.error(key, f"is {_short(value)}; a whole number is needed")
        if not least <= int(value) <= most:
            raise self.error(key, f"is {value}; it must lie in {least}..{most}")
        return int(value)

    def real(self, key: str, *, above: float) -> float:
        """A finite number greater than `above`."""
        value = self.get(key)
        if value is None:
            raise self.error(key, "is missing; the file does not describe a complete model")
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise self.error(key, f"is {_short(value)}; a number is needed")
        if not (math.isfinite(value) and value > above):
            raise self.error(key, f"is {value}; it must be finite and greater than {above:g}")
        return float(value)

    def per_layer(self, key: str, layers: int, *, default: int | None = None, least: int = 1) -> list[int]:
        """One whole number a layer, from a scalar or from a list (which may cover blocks past the trunk)."""
        value = self.get(key)
        if isinstance(value, list | tuple | np.ndarray):
            if len(value) < layers:
                raise self.error(key, f"lists {len(value)} values for {layers} layers")
            return [self._whole(key, item, least, MAX_SIZE) for item in list(value)[:layers]]
        return [self.count(key, default=default, least=least)] * layers

    def uniform(self, key: str, layers: int, where: list[int], *, default: int | None = None) -> int:
        """A number that all layers of `where` share; a list may hold 0 in the other layers."""
        values = self.per_layer(key, layers, default=default, least=0)
        chosen = {values[i] for i in where}
        if len(chosen) != 1 or 0 in chosen:
            raise self.error(key, f"is {sorted(chosen)} over the attention layers; sp needs one positive value")
        return chosen.pop()


def _short(value: Any) -> str:
    """A value for a message, cut to fit one line."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
