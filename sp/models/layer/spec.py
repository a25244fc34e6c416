"""LayerSpec: the computation of one layer as data, which a family's record provides and steps read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sp.ops.rope import Rope

Activation = Literal["silu", "gelu", "clamped"]
"""Activation of a gated feed-forward. `gelu`, the tanh approximation that Gemma uses, is for dense layers only;
`clamped`, see `clamped_swiglu`, is for experts only."""


@dataclass(frozen=True)
class LayerSpec:
    """Computation of a layer beyond the sizes of its model; the defaults are those of Qwen3.

    `scale`: factor on the products of queries and keys, if it is not one over the root of the head size. `softcap`:
    soft cap on the scaled scores. `sinks`: GGUF name of the sink logits, one per query head, which enter the softmax
    without a value; all three as in `ScoreRule`. `post_norms`: GGUF names of the norms after the mixer and after the
    feed-forward, applied to their output before it is added to the stream. `window`: sliding window in positions, the
    query's own included; see `window_reach`. `expert_bias`: True if router and experts have biases. `mixer`, `ffn`:
    builders ``mixer(source, index)`` of that sublayer, see `Mixer` and `FeedForward`. By default the mixer is attention
    or a recurrence, as `ModelConfig.kinds` says, and the feed-forward a gated MLP or a mixture of experts, as the model
    has it.
    """

    qk_norm: bool = True  # RMS norms of every query and key head, before RoPE
    value_norm: bool = False  # RMS norms without weights of every value head
    scale: float | None = None
    softcap: float | None = None
    sinks: str | None = None
    bias: bool | None = False  # biases of q, k and v; None: where the file has them
    out_bias: bool = False  # bias of the output projection of attention
    ffn_norm: str = "ffn_norm"  # GGUF name of the norm before the feed-forward
    post_norms: tuple[str, str] | None = None
    post_norm_eps: float | None = None  # epsilon of the post-norms; None: the model's
    output_scale: str | None = None  # GGUF name of the scalar on the stream after the layer
    gate: str | None = None  # GGUF name of the gate projection of a `gated` model, if it is separate from q's
    rope: Rope | None = None  # RoPE of this layer, never scaled by a run; by default that of the model
    window: int | None = None
    activation: Activation = "silu"
    expert_bias: bool = False
    mixer: Callable[[Any, int], Any] | None = None
    ffn: Callable[[Any, int], Any] | None = None

    @property
    def any_shift(self) -> bool:
        """True if all scores of a query may be shifted by one constant; sinks and soft caps would change the result."""
        return self.sinks is None and self.softcap is None


PLAIN = LayerSpec()  # of Qwen3
