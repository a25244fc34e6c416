"""ShardSpec: the heads, columns and vocabulary that one of several GPUs holds of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Protocol, Self, runtime_checkable

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.models.config import DeltaConfig, ExpertConfig, HeadSizes, ModelConfig
from sp.models.file.weights import CopiedWeight
from sp.quant import Weight


@runtime_checkable
class Shardable(Protocol):
    """A sublayer that several GPUs can share: each computes its part of the sum that is added to the stream."""

    def shard(self, shard: ShardSpec) -> Self:
        """Return one GPU's shard of it."""
        ...


@dataclass(frozen=True)
class ShardSpec:
    """Shard `rank` of `size` equal ones.

    Axes are split along heads. If a tensor stores groups of heads one after the other, as q, k and v in one matrix, a
    GPU takes its part of each group: the argument `groups` of the methods.

    Examples
    --------
    >>> from sp.quant import F32, Weight
    >>> w = Weight.from_floats("w", np.arange(16, dtype=np.float32).reshape(4, 4), F32)
    >>> half = ShardSpec(1, 2)
    >>> half.rows(w).dense()[:, 0], half.rows(w, groups=2).dense()[:, 0], half.columns(w).dense()[0]
    (array([ 8., 12.], dtype=float32), array([ 4., 12.], dtype=float32), array([2., 3.], dtype=float32))
    """

    rank: int
    size: int

    def rows(self, weight: Weight, groups: int = 1) -> Weight:
        """Return this GPU's rows of a matrix (out, in)."""
        out = weight.shape[0]
        assert out % (groups * self.size) == 0, f"{weight.name}: {out} rows in {groups} groups for {self.size} GPUs"
        shape = out // self.size, *weight.shape[1:]
        # one group is a run of consecutive rows, so the shard stays a view of the file
        if groups == 1:
            start = self.rank * shape[0]
            return replace(weight, shape=shape, data=weight.data[start : start + shape[0]])
        parts = weight.data.reshape(groups, self.size, -1, weight.data.shape[1])[:, self.rank]
        return CopiedWeight(weight.name, weight.format, shape, parts.reshape(shape[0], -1), weight.math)

    def columns(self, weight: Weight, groups: int = 1) -> Weight:
        """Return this GPU's columns of a matrix (out, in), in whole blocks of its format. ConfigError if a block would
        span two GPUs."""
        out, width = weight.shape
        own_width, block = width // self.size, weight.format.block_size
        assert width % (groups * self.size) == 0, f"{weight.name}: {width} columns in {groups} groups"
        if (own_width // groups) % block:
            raise ConfigError(
                f"{weight.name}: {width} columns in {weight.format.name} have blocks of {block}, "
                f"which {self.size} GPUs cannot share out; ask for fewer, or take a file in another format"
            )
        parts = weight.data.reshape(out, groups, self.size, -1)[:, :, self.rank]
        return CopiedWeight(weight.name, weight.format, (out, own_width), parts.reshape(out, -1), weight.math)

    def values(self, values: Floats, groups: int = 1) -> Floats:
        """Return this GPU's part of a vector or small table along its first axis."""
        parts = values.reshape(groups, self.size, -1, *values.shape[1:])[:, self.rank]
        return np.ascontiguousarray(parts.reshape(-1, *values.shape[1:]))

    def first_only(self, values: Floats | None) -> Floats | None:
        """Return values that one GPU adds for all: the first GPU gets them, the others get zeros."""
        return values if values is None or self.rank == 0 else np.zeros_like(values)

    def vocabulary(self, vocab: int) -> slice:
        """Return this GPU's rows of the head; the last GPU has fewer if the vocabulary does not divide evenly."""
        most = -(-vocab // self.size)
        return slice(self.rank * most, min((self.rank + 1) * most, vocab))

    def experts(self, experts: ExpertConfig) -> ExpertConfig:
        """Return the experts as this GPU has them: all of them, each narrower."""
        return replace(experts, width=experts.width // self.size, shared=experts.shared // self.size)

    def config(self, config: ModelConfig) -> ModelConfig:
        """Return the model as this GPU has it; hidden size and vocabulary stay whole. ConfigError if heads or
        feed-forward do not divide evenly; the message names the numbers of GPUs that fit."""
        c, delta, experts, others = config, config.delta, config.experts, config.global_heads
        # Everything that is split must divide evenly, except the vocabulary.
        counts = {"kv heads": c.kv_heads}
        if others is not None:
            counts["kv heads of layers without a window"] = others.kv_heads
        if delta is not None:
            counts["key heads of recurrent layers"] = delta.key_heads
        if experts is None:
            counts["columns of feed-forward"] = gcd(*c.ffn)
        else:
            counts["columns of an expert"] = gcd(experts.width, experts.shared)
        # the last GPU's rows of the head must not be empty, see `vocabulary`
        if any(count % self.size for count in counts.values()) or c.vocab < self.size**2:
            # Candidates for the message: up to 16 GPUs.
            fits = [str(size) for size in range(1, 17) if not any(count % size for count in counts.values())]
            have = ", ".join(f"{count} {part}" for part, count in counts.items())
            raise ConfigError(f"{self.size} GPUs cannot share {have}; {' or '.join(fits)} can")
        return replace(
            c,
            heads=c.heads // self.size,
            kv_heads=c.kv_heads // self.size,
            global_heads=None if others is None else self.heads(others),
            ffn=tuple(width // self.size for width in c.ffn),
            delta=None if delta is None else self.delta(delta),
            experts=None if experts is None else self.experts(experts),
        )

    def heads(self, sizes: HeadSizes) -> HeadSizes:
        """Return the head sizes of an attention layer as this GPU has them."""
        return replace(sizes, heads=sizes.heads // self.size, kv_heads=sizes.kv_heads // self.size)

    def delta(self, delta: DeltaConfig) -> DeltaConfig:
        """Return the sizes of recurrent layers as this GPU has them."""
        heads = delta.key_heads // self.size, delta.value_heads // self.size
        return replace(delta, key_heads=heads[0], value_heads=heads[1])


POST_NORMS_REFUSAL = "several GPUs cannot share layers with post-norms; use one GPU, or --target-gpus 1"
"""Refusal for Gemma and Muse Glimmer: a post-norm needs the complete sum, which no GPU has before the all-reduce."""
