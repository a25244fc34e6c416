"""The target: a ``qwen35`` hybrid (three Gated DeltaNet layers, then one gated full-attention layer, repeated)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gdn import gated_delta_net
from layers import EPS, GGUFModule, attend, attend_rows, matrix, pointer_loss, rope, row_logits, take
from torch import Tensor
from torch.nn.functional import embedding, pad, silu, softplus
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class TargetConfig:
    vocab: int = 2560
    layers: int = 12
    interval: int = 4
    hidden: int = 512
    ffn: int = 512
    heads: int = 12
    kv_heads: int = 2
    head_dim: int = 128
    rope_dim: int = 32
    base: float = 1e7
    gain: float = 1.4
    key_heads: int = 4
    value_heads: int = 8
    state: int = 64
    conv: int = 4
    pointer_layer: int = 7
    pointer_heads: tuple[int, ...] = (0, 6)

    def is_attention(self, i: int) -> bool:
        return (i + 1) % self.interval == 0

    @property
    def key_dim(self) -> int:
        return self.key_heads * self.state

    @property
    def inner(self) -> int:
        return self.value_heads * self.state

    def matmul_parameters(self) -> int:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        ffn = 3 * self.ffn
        attention = 3 * q + 2 * kv + ffn
        delta = 2 * self.key_dim + 3 * self.inner + 2 * self.value_heads + ffn
        full = self.layers // self.interval
        return self.hidden * (full * attention + (self.layers - full) * delta)


def delta_mix(
    u: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    conv: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    gain: Tensor,
    hk: int,
    hv: int,
) -> Tensor:
    """A Gated DeltaNet layer between its projections: convolution, gates, delta rule, gated norm; (B, L, hv * d)."""
    d = gain.shape[0]
    taps = conv.shape[1]
    g = -a_log.exp() * softplus(a.float() + dt_bias)
    length = u.shape[1]
    up = pad(u, (0, 0, taps - 1, 0))
    y = up[:, :length].float() * conv[:, 0]
    for j in range(1, taps):
        y = y + up[:, j : j + length].float() * conv[:, j]
    q, k, v = silu(y).split([hk * d, hk * d, hv * d], -1)
    q, k = q.unflatten(-1, (hk, d)), k.unflatten(-1, (hk, d))
    q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + EPS) * d**-0.5)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + EPS)
    o = gated_delta_net(q, k, v.unflatten(-1, (hv, d)), b.float().sigmoid(), g)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS) * gain
    return (o * silu(z.float()).unflatten(-1, (hv, d))).flatten(2).to(u.dtype)


class Target(GGUFModule):
    def __init__(self, config: TargetConfig, compute: torch.dtype = torch.bfloat16) -> None:
        super().__init__(compute)
        c = self.config = config
        self.checkpointing = False
        self.mix = delta_mix  # may be replaced by its compiled form
        out = (2 * c.layers) ** -0.5
        self.add("token_embd.weight", torch.randn(c.vocab, c.hidden) * 0.3)
        self.add("output_norm.weight", torch.ones(c.hidden))
        self.add("output.weight", matrix(c.vocab, c.hidden, 0.5))
        for i in range(c.layers):
            b = f"blk.{i}."
            self.add(b + "attn_norm.weight", torch.ones(c.hidden))
            self.add(b + "post_attention_norm.weight", torch.ones(c.hidden))
            if c.is_attention(i):
                q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
                self.add(b + "attn_q.weight", matrix(2 * q, c.hidden))
                self.add(b + "attn_k.weight", matrix(kv, c.hidden))
                self.add(b + "attn_v.weight", matrix(kv, c.hidden))
                self.add(b + "attn_output.weight", matrix(c.hidden, q, 2 * out))
                self.add(b + "attn_q_norm.weight", torch.full((c.head_dim,), c.gain))
                self.add(b + "attn_k_norm.weight", torch.full((c.head_dim,), c.gain))
            else:
                channels = 2 * c.key_dim + c.inner
                self.add(b + "attn_qkv.weight", matrix(channels, c.hidden))
                self.add(b + "attn_gate.weight", matrix(c.inner, c.hidden))
                self.add(b + "ssm_alpha.weight", matrix(c.value_heads, c.hidden))
                self.add(b + "ssm_beta.weight", matrix(c.value_heads, c.hidden))
                self.add(b + "ssm_conv1d.weight", (torch.rand(channels, c.conv) * 2 - 1) * c.conv**-0.5)
                self.add(b + "ssm_a_log", torch.empty(c.value_heads).uniform_(1, 16).log())
                dt = torch.exp(torch.rand(c.value_heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
                self.add(b + "ssm_dt.bias", dt + torch.log(-torch.expm1(-dt)))
                self.add(b + "ssm_norm.weight", torch.ones(c.state))
                self.add(b + "ssm_out.weight", matrix(c.hidden, c.inner, out))
            self.add(b + "ffn_gate.weight", matrix(c.ffn, c.hidden))
            self.add(b + "ffn_up.weight", matrix(c.ffn, c.hidden))
            self.add(b + "ffn_down.weight", matrix(c.hidden, c.ffn, out))

    def delta_net(self, i: int, h: Tensor) -> Tensor:
        c, b = self.config, f"blk.{i}."
        o = self.mix(
            self.linear(h, b + "attn_qkv.weight"), self.linear(h, b + "attn_gate.weight"),
            self.linear(h, b + "ssm_beta.weight"), self.linear(h, b + "ssm_alpha.weight"),
            self.w(b + "ssm_conv1d.weight"), self.w(b + "ssm_dt.bias"), self.w(b + "ssm_a_log"),
            self.w(b + "ssm_norm.weight"), c.key_heads, c.value_heads,
        )  # fmt: skip
        return self.linear(o, b + "ssm_out.weight")

    def attention(
        self, i: int, h: Tensor, positions: Tensor, rows: Tensor, source: Tensor | None, last: bool
    ) -> tuple[Tensor, Tensor]:
        c, b = self.config, f"blk.{i}."
        hq, pq = (take(h, rows), positions.gather(1, rows)) if last else (h, positions)
        qg = self.linear(hq, b + "attn_q.weight").unflatten(-1, (c.heads, 2, c.head_dim))
        k = self.linear(h, b + "attn_k.weight").unflatten(-1, (c.kv_heads, c.head_dim))
        v = self.linear(h, b + "attn_v.weight").unflatten(-1, (c.kv_heads, c.head_dim))
        q = rope(self.norm(qg[..., 0, :], b + "attn_q_norm.weight"), pq, c.base, c.rope_dim)
        k = rope(self.norm(k, b + "attn_k_norm.weight"), positions, c.base, c.rope_dim)
        pointer = h.new_zeros(())
        if source is not None and i == c.pointer_layer:
            per = c.heads // c.kv_heads
            for head in c.pointer_heads:
                one = take(q[:, :, head : head + 1], rows)
                pointer = pointer + pointer_loss(row_logits(one, k[:, :, head // per : head // per + 1], rows), source)
            pointer = pointer / len(c.pointer_heads)
        o = attend_rows(row_logits(q, k, rows), v) if last else attend(q, k, v)
        o = o * qg[..., 1, :].sigmoid()
        return self.linear(o.flatten(2), b + "attn_output.weight"), pointer

    def block(self, i: int, x: Tensor, positions: Tensor, rows: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor]:
        c, b = self.config, f"blk.{i}."
        last = i == c.layers - 1
        h = self.norm(x, b + "attn_norm.weight")
        if c.is_attention(i):
            y, pointer = self.attention(i, h, positions, rows, source, last)
        else:
            y, pointer = self.delta_net(i, h), x.new_zeros(())
        x = (take(x, rows) if last else x) + y
        h = self.norm(x, b + "post_attention_norm.weight")
        g = silu(self.linear(h, b + "ffn_gate.weight")) * self.linear(h, b + "ffn_up.weight")
        return x + self.linear(g, b + "ffn_down.weight"), pointer

    def forward(
        self, ids: Tensor, positions: Tensor, rows: Tensor, source: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, K, vocab) at ``rows`` and the pointer loss; the sequence length must be a multiple of 64."""
        x = embedding(ids, self.w("token_embd.weight")).float()
        pointer = x.new_zeros(())
        for i in range(self.config.layers):
            if self.checkpointing and self.training:
                x, p = checkpoint(
                    self.block, i, x, positions, rows, source, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x, p = self.block(i, x, positions, rows, source)
            pointer = pointer + p
        return self.linear(self.norm(x, "output_norm.weight"), "output.weight").float(), pointer
