"""The two models of the instrument, both attention-only: a hybrid of the target's size learned far slower here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from drafter import Drafter, DrafterConfig
from layers import attend, attend_rows, row_logits, take
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

DRAFTER = DrafterConfig(vocab=4096, layers=5, hidden=256, ffn=768)
TARGET = DrafterConfig(vocab=4096, layers=10, hidden=512, ffn=1536, heads=8, kv_heads=2)

WEIGHTS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output",
    "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
EPS = 1e-6


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (B, L, heads, d) by angles of (B, L, 1, d / 2), halves as pairs."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


def keys_values(h: Tensor, cos: Tensor, sin: Tensor, w: list[Tensor], d: int) -> tuple[Tensor, Tensor]:
    """Keys and values of (B, L, hidden)."""
    k = rms_norm(linear(h, w[2]).unflatten(-1, (-1, d)), (d,), w[5], EPS)
    return turned(k, cos, sin), linear(h, w[3]).unflatten(-1, (-1, d))


def queries(h: Tensor, cos: Tensor, sin: Tensor, w: list[Tensor], d: int) -> Tensor:
    """Queries of (B, L, hidden)."""
    return turned(rms_norm(linear(h, w[1]).unflatten(-1, (-1, d)), (d,), w[4], EPS), cos, sin)


def fed(x: Tensor, o: Tensor, w: list[Tensor]) -> Tensor:
    """The residual stream behind a layer whose attention is `o`."""
    x = x + linear(o.flatten(2), w[6])
    h = rms_norm(x, (x.shape[-1],), None, EPS).to(o.dtype) * w[7]
    return x + linear(silu(linear(h, w[8])) * linear(h, w[9]), w[10])


def layer(x: Tensor, cos: Tensor, sin: Tensor, w: list[Tensor], d: int) -> Tensor:
    """One layer over all tokens."""
    h = rms_norm(x, (x.shape[-1],), None, EPS).to(w[1].dtype) * w[0]
    k, v = keys_values(h, cos, sin, w, d)
    return fed(x, attend(queries(h, cos, sin, w, d), k, v), w)


class Reader(Drafter):
    """The drafter's formula with angles computed once and a layer as one function, which may be compiled."""

    run: Callable[[Tensor, Tensor, Tensor, list[Tensor], int], Tensor] = staticmethod(layer)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        rows: Tensor,
        source: Tensor | None = None,
        taps: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, K, vocab) at `rows`, and 0: nothing is pointed at."""
        if source is not None or taps is not None:
            return super().forward(ids, positions, rows, source, taps)
        c, d = self.config, self.config.head_dim
        inverse = c.base ** (-torch.arange(d // 2, device=ids.device, dtype=torch.float32) * 2 / d)
        angle = (positions[..., None].float() * inverse)[:, :, None]
        cos, sin = angle.cos(), angle.sin()
        x = embedding(ids, self.w("token_embd.weight")).float()
        for i in range(c.layers):
            w = [self.w(f"blk.{i}.{name}.weight").to(self.compute) for name in WEIGHTS]
            if i + 1 < c.layers:
                x = self.run(x, cos, sin, w, d)
                continue
            h = rms_norm(x, (x.shape[-1],), None, EPS).to(self.compute) * w[0]
            k, v = keys_values(h, cos, sin, w, d)
            at = take(cos, rows), take(sin, rows)
            q = queries(take(h, rows), *at, w, d)
            x = fed(take(x, rows), attend_rows(row_logits(q, k, rows), v), w)
        return self.linear(self.norm(x, "output_norm.weight"), "token_embd.weight").float(), x.new_zeros(())


def build(role: str, compute: torch.dtype) -> Reader:
    """A model with random weights; its layer 0 starts as heads that look at previous tokens."""
    return Reader(DRAFTER if role == "drafter" else TARGET, compute)
