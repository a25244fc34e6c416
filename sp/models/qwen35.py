"""qwen35: the Qwen3.5 / Qwen3.6 hybrid of Gated DeltaNet and gated attention, from GGUF tensors."""

from __future__ import annotations

from dataclasses import dataclass

from sp.arrays import Floats, Ints
from sp.models.blocks import Attention, Block, Mixer, Tap
from sp.models.cache import Cache
from sp.models.config import DeltaConfig
from sp.models.weights import WeightStore
from sp.ops import causal_conv1d, gated_delta_net, l2norm, linear, rms_norm, sigmoid, silu, softplus
from sp.quant import Weight


@dataclass(frozen=True)
class GatedDelta:
    """A Gated DeltaNet layer: convolution, delta-rule recurrence, gated norm. It has no positions and no pages.

    GGUF files hold value heads in tiled order, ``ssm_a = -exp(A_log)`` and a plain ``ssm_norm``.
    """

    index: int
    sizes: DeltaConfig
    eps: float
    qkv: Weight  # rows q | k | v
    gate: Weight
    alpha: Weight
    beta: Weight
    out: Weight
    conv: Floats  # (conv_dim, taps), the last tap meets the current token
    a: Floats  # (value_heads,), not positive
    dt_bias: Floats
    norm: Floats  # (head_dim,), shared by all heads

    @classmethod
    def take(cls, store: WeightStore, index: int) -> GatedDelta:
        """Build layer `index`."""
        c, hidden, blk = store.config.delta, store.config.hidden, f"blk.{index}."
        assert c is not None, "a delta layer without delta sizes"
        return cls(
            index=index,
            sizes=c,
            eps=store.config.eps,
            qkv=store.matrix(f"{blk}attn_qkv.weight", (c.conv_dim, hidden)),
            gate=store.matrix(f"{blk}attn_gate.weight", (c.value_dim, hidden)),
            alpha=store.matrix(f"{blk}ssm_alpha.weight", (c.value_heads, hidden)),
            beta=store.matrix(f"{blk}ssm_beta.weight", (c.value_heads, hidden)),
            out=store.matrix(f"{blk}ssm_out.weight", (hidden, c.value_dim)),
            conv=store.table(f"{blk}ssm_conv1d.weight", (c.conv_dim, c.conv_kernel)),
            a=store.vector(f"{blk}ssm_a", c.value_heads),
            dt_bias=store.vector(f"{blk}ssm_dt.bias", c.value_heads),
            norm=store.vector(f"{blk}ssm_norm.weight", c.head_dim),
        )

    def __call__(self, h: Floats, positions: Ints, cache: Cache, rows: int, tap: Tap | None) -> Floats:
        """See `Mixer`; positions and tap belong to attention layers."""
        c, n, state = self.sizes, len(h), cache.state(self.index)
        mixed, state.conv = causal_conv1d(linear(h, self.qkv), self.conv, state.conv)
        q = l2norm(mixed[:, : c.key_dim].reshape(n, c.key_heads, c.head_dim), self.eps)
        k = l2norm(mixed[:, c.key_dim : 2 * c.key_dim].reshape(n, c.key_heads, c.head_dim), self.eps)
        v = mixed[:, 2 * c.key_dim :].reshape(n, c.value_heads, c.head_dim)
        g = self.a * softplus(linear(h, self.alpha) + self.dt_bias)
        out, state.recurrent = gated_delta_net(q, k, v, g, sigmoid(linear(h, self.beta)), state.recurrent)
        state.tokens += n
        last = rms_norm(out[n - rows :], self.norm, self.eps).reshape(rows, c.value_dim)
        last *= silu(linear(h[n - rows :], self.gate))
        return linear(last, self.out)


def qwen35_block(store: WeightStore, index: int) -> Block:
    """Build block `index` of a `qwen35` file: attention or Gated DeltaNet, as the configuration says.

    The feed-forward norm is called post_attention_norm in these files.

    References
    ----------
    Qwen Team, Qwen3-Next and Qwen3.5; Yang et al., "Gated Delta Networks", 2024.
    """
    full = store.config.kinds[index] == "attention"
    mixer: Mixer = Attention.take(store, index) if full else GatedDelta.take(store, index)
    return Block.take(store, index, mixer, "post_attention_norm")
