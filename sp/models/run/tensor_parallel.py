"""ShardModel: one GPU's shard of a model, called as any other model, in the thread of that GPU.

Each GPU stores 1/size of the residual stream and adds the contribution of its heads or columns to it, which is a part
of the sum that the whole sublayer adds. The mean over all GPUs is 1/size of the new stream: one all-reduce does both
the sum and the addition, with no other launch. RMS norms are not affected by the scale if their `eps` is divided by
size squared too; if the size is a power of two, rounding does not differ either.

Many tokens pass in two parts, so that GPUs reduce one part while they compute the other: a sublayer ends in an
all-reduce that the next sublayer waits for, and with two parts one of them can always go on.

    computed       first: mixer | second: mixer | first: feed-forward | second: feed-forward | first: the next mixer
    all-reduced                 | first         | second              | first                | second
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels.device import leaving_free
from sp.kernels.setting import setting
from sp.models.cache.cache import Cache
from sp.models.cache.delta_state import padded
from sp.models.config import ModelConfig
from sp.models.layer.block import Sublayers
from sp.models.layer.shard_spec import ShardSpec
from sp.models.layer.steps import Flow, Sublayer
from sp.models.network.arithmetic import Arithmetic
from sp.models.network.model import Device, Model
from sp.models.network.weights import ModelWeights
from sp.ops.array_module import array_module
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready
from sp.ops.sampling.cap_logits import cap_logits
from sp.parallel.group import ParallelGroup, Rank
from sp.quant.repack import Repacked

PART = 1024
"""Fewest tokens of a part; products of fewer use other kernels, and their all-reduce takes negligible time."""
ROUND = 128  # parts start at multiples of it, as pages and blocks of queries do


def middle(tokens: int) -> int:
    """Return where the second of two parts starts; 0 if the tokens are too few for two.

    >>> middle(6656), middle(2047), middle(2048)
    (3328, 0, 1024)
    """
    return -(-tokens // (2 * ROUND)) * ROUND if tokens >= 2 * PART else 0


_gpu: ContextVar[Rank | None] = ContextVar("gpu_of_shard", default=None)
"""The GPU of a thread. Not stored in the model, because an abandoned thread must go on with the GPU it had, and end on
it."""


def working_with(gpu: Rank) -> AbstractContextManager[None]:
    """Within the context, shards in this thread communicate through this GPU."""
    return setting(_gpu, gpu)


def this_gpu() -> Rank:
    """Return the GPU of this thread; ConfigError outside of `working_with`."""
    gpu = _gpu.get()
    if gpu is None:
        raise ConfigError("a shard of a model runs only together with the other shards; use Shards.run")
    return gpu


class ShardModel(Model):
    """One GPU's shard of a model.

    It does what a `Model` does, and each call waits for the same call on all GPUs. Logits are complete, and the same
    bits on every GPU, so that all choose the same tokens.

    Parameters
    ----------
    config : ModelConfig
        With this GPU's heads and columns; its caches store no others.
    weights : ModelWeights
        Embedding and norms whole, otherwise this GPU's shard.
    group : ParallelGroup
        The GPUs that share the model. It lives as long as this model, and so as long as its graphs.
    device, nbytes, repacked, arithmetic
        See `Model`.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        device: Device,
        nbytes: int,
        repacked: tuple[Repacked, ...],
        arithmetic: Arithmetic,
        shard: ShardSpec,
        group: ParallelGroup,
    ) -> None:
        self.shard, self.group, self.captures, self.shard_count = shard, group, group.captures, shard.size
        weights = replace(weights, blocks=tuple(replace(block, eps=self._eps(block.eps)) for block in weights.blocks))
        super().__init__(config, weights, device, nbytes, repacked, None, arithmetic)

    def _eps(self, eps: float) -> float:
        """Return the epsilon for a norm of the stream divided by the number of GPUs."""
        return eps / self.shard.size**2

    def embed(self, ids: Ints, *, normed: bool = True) -> Floats:
        """Embed tokens, see `Model`; divided by the number of GPUs, like all streams that layers take and return."""
        x = super().embed(ids, normed=normed)
        x *= np.float32(1 / self.shard.size)
        return x

    def full_stream(self, x: Floats) -> Floats:
        full: Floats = x * np.float32(self.shard.size)
        return full

    @property
    def deferred_norm_layers(self) -> list[Sublayers]:
        """The plain layers: a norm deferred to one GPU's part of a sum would be of no use."""
        return self.weights.layers

    def pass_layer(self, layer: Sequence[Sublayer], flow: Flow) -> Floats:
        """Run the steps of a layer, see `Model`; an all-reduce of x (n, hidden) follows each sublayer."""
        for sublayer in layer:
            with this_gpu().launch_lock():
                super().pass_layer((sublayer,), flow)
            if not flow.rows:
                break
            this_gpu().all_reduce(flow.x)
        return flow.x

    def overlap_start(self, tokens: int) -> int:
        return middle(tokens)

    def run_overlapped(self, x: Floats, positions: Ints, cache: Cache, rest: Ints) -> Floats:
        """Pass many tokens through all layers but the last, in place, in two parts.

        `x`, float32 (n, hidden): on the device; n at least two parts. `positions`, int64 (n,): on the device. `cache`:
        every layer is counted separately, on the device too; the last layer is counted here. `rest`, int32 (1,): on the
        device: number of tokens of the second part that count; the tokens after them are padding.
        """
        split, layers = middle(len(x)), self.weights.layers[:-1]
        assert split, f"{len(x)} tokens in parts of {PART}"
        first, second = slice(0, split), slice(split, len(x))
        passes = [
            self._part(layers, Flow(x[first], positions[first], cache, split)),
            self._part(layers, Flow(x[second], positions[second], cache, len(x) - split), rest),
        ]
        with leaving_free(self.group.busy):  # leave SMs free for the all-reduce kernels
            while passes:
                passes = [run for run in passes if next(run, False) is None]
        cache.advance(len(x), layer=len(layers))
        return x

    def all_agree(self, fine: bool) -> bool:
        """Return True if all GPUs pass True, see `Rank.agree`."""
        return this_gpu().agree(fine)

    def wait_for_event(self, event: Any) -> None:
        """Wait for an event, see `Model`; a GPU that hangs is detected."""
        this_gpu().wait_for(event)

    def on_shared_cpu(self) -> AbstractContextManager[None]:
        return this_gpu().on_shared_cpu()

    def launch_lock(self) -> AbstractContextManager[Any]:
        return this_gpu().launch_lock()

    def set_warm(self, known: bool) -> None:
        this_gpu().set_warm(known)

    def wait_until_done(self) -> None:
        this_gpu().wait()

    def head(self, x: Floats, norm: Norm | Ready | None = None) -> Floats:
        """Compute logits, see `Model`; waits until they are there, so that a GPU that hangs is detected."""
        norm = (self.weights.output_norm, self._eps(self.config.eps)) if norm is None else norm
        assert self.weights.output is not None, "shards have heads"
        (own_logits,) = project(x, (self.weights.output,), norm, f32=(True,))
        scale, cap = self.config.logit_scale, self.config.final_softcap
        own_logits = own_logits if scale == 1 and cap is None else cap_logits(own_logits, scale, cap)
        xp, vocab, size, gpu = array_module(x), self.config.vocab, self.shard.size, this_gpu()
        parts = xp.empty((size, len(x), -(-vocab // size)), np.float32)
        # The last GPU may have fewer rows; the surplus is cut off after the gather.
        parts[gpu.rank, :, : own_logits.shape[1]] = own_logits
        gpu.all_gather(parts)
        rows: Floats = xp.ascontiguousarray(parts.transpose(1, 0, 2).reshape(len(x), -1)[:, :vocab])
        gpu.wait()
        return rows

    def _part(self, layers: Sequence[Sublayers], flow: Flow, real: Ints | None = None) -> Iterator[None]:
        """Pass one part of the tokens through layers; yields whenever an all-reduce has started. Only `real` of its
        tokens count."""
        for index, layer in enumerate(layers):
            # Only recurrent layers store padding; attention hides it by counts.
            states = [flow.cache.state(index)] if index in flow.cache.config.delta_layers else []
            for sublayer in layer:
                with nullcontext() if real is None else padded(states, real), this_gpu().launch_lock():
                    super().pass_layer((sublayer,), flow)
                finish_all_reduce = this_gpu().begin_reduce(flow.x)
                yield
                finish_all_reduce()
