"""ModelConfig: every number a forward pass needs; how files tell of it lies with the architectures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from sp.ops.attention.position_scale import PositionScale
from sp.ops.rope import Rope

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
    copies : int
        Key heads, one beside the other, that are one of the file's.
    """

    key_heads: int
    value_heads: int
    head_dim: int
    conv_kernel: int
    copies: int = 1

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
class ExpertConfig:
    """Sizes of a mixture of experts, the same in every layer.

    Attributes
    ----------
    count, used : int
        Experts that there are, and that a token goes to.
    width : int
        Feed-forward width of one.
    shared : int
        Width of the expert that all tokens pass; 0 where there is none.
    normalised : bool
        Whether the weights of a token's experts add up to 1.
    """

    count: int
    used: int
    width: int
    shared: int = 0
    normalised: bool = True

    @property
    def active(self) -> int:
        """Width that a token passes."""
        return self.used * self.width + self.shared


@dataclass(frozen=True)
class Retrieval:
    """Which attention heads of a model find text that answers a question: measured, or chosen by rule.

    Attributes
    ----------
    heads : tuple of (int, tuple of int)
        By attention layer, ascending, the heads that count.
    rotary : {"none", "post"}
        Whether their queries and keys count without rotary embedding or with it.
    over_heads, over_queries : {"max", "mean"}
        How the weights of heads and of queries become one number a token.
    measured : bool
        Whether a measurement of this file chose them.
    sha256 : str
        Of the file, where that is known.
    scorer : str
        Name of the scorer that finds most with this file.

    Examples
    --------
    >>> Retrieval(((17, (0, 1)), (18, (1,))), "none").depth
    19
    """

    heads: tuple[tuple[int, tuple[int, ...]], ...]
    rotary: Literal["none", "post"]
    over_heads: Literal["max", "mean"] = "max"
    over_queries: Literal["max", "mean"] = "max"
    measured: bool = True
    sha256: str = ""
    scorer: str = "calibrated"

    @property
    def layers(self) -> tuple[int, ...]:
        """Attention layers that have such heads, ascending."""
        return tuple(layer for layer, _ in self.heads)

    @property
    def depth(self) -> int:
        """Layers that have to be run for them."""
        return self.layers[-1] + 1


@dataclass(frozen=True)
class HeadSizes:
    """Heads of an attention layer.

    Attributes
    ----------
    heads, kv_heads, head_dim : int
        See `ModelConfig`.
    own_values : bool
        Whether values have a matrix of their own, and are not what the matrix of keys makes.
    """

    heads: int
    kv_heads: int
    head_dim: int
    own_values: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model.

    Attributes
    ----------
    architecture : str
        Name of a record of `sp.models.families`; ``"dflash"`` of a draft's own layers.
    hidden, vocab, context : int
        Width of the residual stream, rows of the embedding, longest position + 1.
    ffn : tuple of int
        Feed-forward width of every layer; of a mixture of experts what a token passes of it.
    kinds : tuple of {"attention", "delta"}
        What mixes tokens in every layer. Multi-token-prediction blocks past the trunk are not counted.
    heads, kv_heads, head_dim : int
        Of the attention layers; ``head_dim`` need not be ``hidden / heads``. Where `global_heads` is another, of those
        with a window; `heads` is the same in all.
    gated : bool
        Whether attention outputs pass a sigmoid gate (its rows lie beside the query rows).
    experts : ExpertConfig or None
        Of mixtures of experts.
    retrieval : Retrieval or None
        Heads that find what answers a question, where that is known of the file.
    windows : tuple of int or None
        Tokens that a query of each layer sees back to, itself among them; None, or no tuple at all, for all.
    local_rope : Rope or None
        Of layers with a window, if it is another one than `rope`, that of the others; with a `dim` of 0 it is none.
    global_heads : HeadSizes or None
        Of layers without a window, if they are others.
    output_scales : bool
        Whether what each layer leaves is multiplied by a number of its own.
    embedding_scale : float
        What embeddings are multiplied by.
    query_growth : PositionScale or None
        What queries are multiplied by behind RoPE, by their position.
    embedding_norm : bool
        Whether embeddings pass an RMS norm without weights.
    logit_scale : float
        What logits are multiplied by.
    final_softcap : float or None
        What logits are then kept within: x becomes ``cap * tanh(x / cap)``.
    attention_softcap : float or None
        What scores of attention are kept within.

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
    experts: ExpertConfig | None = None
    retrieval: Retrieval | None = None
    windows: tuple[int | None, ...] = ()
    local_rope: Rope | None = None
    global_heads: HeadSizes | None = None
    output_scales: bool = False
    embedding_scale: float = 1.0
    query_growth: PositionScale | None = None
    embedding_norm: bool = False
    logit_scale: float = 1.0
    final_softcap: float | None = None
    attention_softcap: float | None = None

    @cached_property
    def layers(self) -> int:
        """Layers of the trunk."""
        return len(self.kinds)

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep keys and values."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "attention")

    @cached_property
    def global_layers(self) -> tuple[int, ...]:
        """Attention layers without a window; all of them where every one has one."""
        layers = self.attention_layers
        return tuple(layer for layer in layers if self.window_of(layer) is None) or layers

    @cached_property
    def delta_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep a recurrent state."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "delta")

    def window_of(self, layer: int) -> int | None:
        """Window of a layer; None where it sees everything."""
        return self.windows[layer] if self.windows else None

    def heads_of(self, layer: int) -> HeadSizes:
        """Heads of an attention layer: of one without a window, their own."""
        if self.global_heads is not None and self.window_of(layer) is None:
            return self.global_heads
        return HeadSizes(self.heads, self.kv_heads, self.head_dim)

    @cached_property
    def head_sizes(self) -> tuple[HeadSizes, ...]:
        """Those of the attention layers, each once."""
        return tuple(sizes for sizes, _ in self.head_groups)

    @cached_property
    def head_groups(self) -> tuple[tuple[HeadSizes, tuple[int, ...]], ...]:
        """Sizes of heads, each with the attention layers that have them."""
        found: dict[HeadSizes, list[int]] = {}
        for layer in self.attention_layers:
            found.setdefault(self.heads_of(layer), []).append(layer)
        return tuple((sizes, tuple(layers)) for sizes, layers in found.items())

    def rope_of(self, layer: int) -> Rope:
        """Rotary embedding of an attention layer: of one with a window, its own."""
        return self.rope if self.local_rope is None or self.window_of(layer) is None else self.local_rope


@lru_cache(64)
def first_layers(config: ModelConfig, depth: int | None) -> ModelConfig:
    """A model of only so many of the layers; all by default. Kept, as a break-even is looked for by it."""
    return replace(config, ffn=config.ffn[:depth], kinds=config.kinds[:depth], windows=config.windows[:depth])
