"""ModelConfig: every number that a forward pass needs. Reading these numbers from files is the job of the families."""

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
        Consecutive key heads that are copies of one key head of the file.
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
        """Channels of the convolution: q, k and v concatenated."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class ExpertConfig:
    """Sizes of a mixture of experts, the same in every layer.

    Attributes
    ----------
    count, used : int
        Number of experts, and number of experts that each token is routed to.
    width : int
        Feed-forward width of one expert.
    shared : int
        Width of the shared expert, which processes every token; 0 without one.
    normalised : bool
        True if the routing weights of a token are scaled to sum to 1.
    """

    count: int
    used: int
    width: int
    shared: int = 0
    normalised: bool = True

    @property
    def active(self) -> int:
        """Total feed-forward width that one token passes through."""
        return self.used * self.width + self.shared


@dataclass(frozen=True)
class Retrieval:
    """Attention heads that locate the text which answers a question, either measured or chosen by a rule.

    Attributes
    ----------
    heads : tuple of (int, tuple of int)
        Head indices by attention layer, layers ascending.
    rotary : {"none", "post"}
        Use the queries and keys of these heads without rotary embedding, or after it.
    over_heads, over_queries : {"max", "mean"}
        Reductions of the attention weights over heads and over queries, to one number per token.
    measured : bool
        True if the heads were chosen by a measurement of this file.
    sha256 : str
        Hash of the file, if known.
    scorer : str
        Name of the scorer that retrieves best with this file.

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
        """Attention layers with retrieval heads, ascending."""
        return tuple(layer for layer, _ in self.heads)

    @property
    def depth(self) -> int:
        """Number of layers to run, from the first, to reach all retrieval heads."""
        return self.layers[-1] + 1


@dataclass(frozen=True)
class HeadSizes:
    """Head counts and head size of one attention layer.

    Attributes
    ----------
    heads, kv_heads, head_dim : int
        As in `ModelConfig`.
    own_values : bool
        True if values have a projection matrix of their own; False if the key projection also gives the values.
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
        Name of a record of `sp.models.families`; ``"dflash"`` for the layers of a draft.
    hidden, vocab, context : int
        Width of the residual stream, rows of the embedding, longest position + 1.
    ffn : tuple of int
        Feed-forward width of every layer; in a mixture of experts, the width that one token passes through.
    kinds : tuple of {"attention", "delta"}
        Token mixer of every layer. Multi-token-prediction blocks after the main model are not counted.
    heads, kv_heads, head_dim : int
        Sizes of the attention layers; ``head_dim`` need not be ``hidden / heads``. If `global_heads` differs, these are
        the sizes of layers with a window; `heads` is the same in all layers.
    gated : bool
        True if attention outputs pass through a sigmoid gate, whose rows are interleaved with the query rows.
    experts : ExpertConfig or None
        Sizes of the experts; None for dense models.
    retrieval : Retrieval or None
        Retrieval heads, if they are known for the file.
    windows : tuple of int or None
        Sliding window of each layer in tokens, the query's own included; None, or an empty tuple, for full attention.
    local_rope : Rope or None
        Rotary embedding of layers with a window, if it differs from `rope`, that of the other layers. A `dim` of 0
        means no rotary embedding.
    global_heads : HeadSizes or None
        Sizes of layers without a window, if they differ.
    output_scales : bool
        True if each layer multiplies its output by a learned scalar.
    embedding_scale : float
        Factor on the embeddings.
    query_growth : PositionScale or None
        Factor on the queries after RoPE, as a function of position.
    embedding_norm : bool
        True if embeddings pass through an RMS norm without weights.
    logit_scale : float
        Factor on the logits.
    final_softcap : float or None
        Soft cap on the scaled logits: x becomes ``cap * tanh(x / cap)``.
    attention_softcap : float or None
        Soft cap on attention scores.

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
        """Number of layers of the main model."""
        return len(self.kinds)

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.heads // self.kv_heads

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep keys and values."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "attention")

    @cached_property
    def global_layers(self) -> tuple[int, ...]:
        """Attention layers without a window; all attention layers if every one has a window."""
        layers = self.attention_layers
        return tuple(layer for layer in layers if self.window_of(layer) is None) or layers

    @cached_property
    def delta_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep a recurrent state."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "delta")

    @cached_property
    def windowed_layers(self) -> tuple[int, ...]:
        """Attention layers with a window."""
        return tuple(layer for layer in self.attention_layers if self.window_of(layer) is not None)

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer in tokens; None for full attention."""
        return self.windows[layer] if self.windows else None

    def heads_of(self, layer: int) -> HeadSizes:
        """Return the head sizes of an attention layer; layers without a window may have their own."""
        if self.global_heads is not None and self.window_of(layer) is None:
            return self.global_heads
        return HeadSizes(self.heads, self.kv_heads, self.head_dim)

    @cached_property
    def head_sizes(self) -> tuple[HeadSizes, ...]:
        """Distinct head sizes of the attention layers, in order of first appearance."""
        return tuple(sizes for sizes, _ in self.head_groups)

    @cached_property
    def head_groups(self) -> tuple[tuple[HeadSizes, tuple[int, ...]], ...]:
        """Distinct head sizes, each with the attention layers that have it."""
        layers_by_size: dict[HeadSizes, list[int]] = {}
        for layer in self.attention_layers:
            layers_by_size.setdefault(self.heads_of(layer), []).append(layer)
        return tuple((sizes, tuple(layers)) for sizes, layers in layers_by_size.items())

    def rope_of(self, layer: int) -> Rope:
        """Return the rotary embedding of an attention layer; layers with a window may have their own."""
        return self.rope if self.local_rope is None or self.window_of(layer) is None else self.local_rope


@lru_cache(64)
def first_layers(config: ModelConfig, depth: int | None) -> ModelConfig:
    """Return the configuration of the first `depth` layers; all layers by default. Cached, because the search for a
    break-even length calls it often."""
    return replace(config, ffn=config.ffn[:depth], kinds=config.kinds[:depth], windows=config.windows[:depth])
