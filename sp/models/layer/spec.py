"""LayerSpec: what one layer of a model computes, as data that a family's record gives and that steps read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sp.ops.rope import Rope

Activation = Literal["silu", "gelu", "clamped"]
"""Of a gated feed-forward; `gelu` by its tanh approximation, as files of Gemma have it, in dense ones alone; `clamped`,
see `clamped_swiglu`, in experts alone."""


@dataclass(frozen=True)
class LayerSpec:
    """What a layer computes, where its model's sizes do not tell; defaults are those of Qwen3.

    `scale`: what products of queries and keys are multiplied by, where that is not one over the root of the head size.
    `softcap`: what they are bent below then. `sinks`: what files call the logits that no value belongs to, one for each
    query head; all three as in `ScoreRule`. `behind`: what files call the norms behind the mixer and behind the
    feed-forward, of what is then added to the stream. `window`: positions that a query sees back to, its own
    among them; see `window_reach`. `expert_bias`: whether router and experts have biases. `mixer`, `ffn`:
    build that half from a store: ``mixer(store, index)``, see `Mixer` and `FeedForward`. By default attention or a
    recurrence as `ModelConfig.kinds` says, and a gated product or a mixture of experts as the model has them.
    """

    qk_norm: bool = True  # RMS norms of every query and key head, before RoPE
    value_norm: bool = False  # RMS norms without weights of every value head
    scale: float | None = None
    softcap: float | None = None
    sinks: str | None = None
    bias: bool | None = False  # biases of q, k and v; None: where the file has them
    out_bias: bool = False  # of the projection behind attention
    ffn_norm: str = "ffn_norm"  # what files call the norm before the feed-forward
    behind: tuple[str, str] | None = None
    behind_eps: float | None = None  # of those norms; None: the model's
    output_scale: str | None = None  # what files call the number that the stream behind the layer is multiplied by
    gate: str | None = None  # what files call the matrix of a `gated` model's gates, where it is not one with q's
    rope: Rope | None = None  # of this layer alone, however a reading scales the model's; by default that of the model
    window: int | None = None
    activation: Activation = "silu"
    expert_bias: bool = False
    mixer: Callable[[Any, int], Any] | None = None
    ffn: Callable[[Any, int], Any] | None = None

    @property
    def any_shift(self) -> bool:
        """Whether all scores of a query may be shifted together: sinks and bounds of scores would see it."""
        return self.sinks is None and self.softcap is None


PLAIN = LayerSpec()  # of Qwen3
