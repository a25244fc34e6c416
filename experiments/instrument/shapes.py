"""The two models of the instrument, both attention-only: a hybrid of the target's size learned far slower here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from layers import EPS, GGUFModule, attend, attend_rows, matrix, rope, row_logits, take
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from sp.models.file.file_type import tensor_format
from sp.quant import BlockFormat


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    vocab: int
    layers: int
    hidden: int
    ffn: int
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    base: float = 1e7
    gain: float = 1.4  # of the q and k norms at the start


DRAFTER = Shape(vocab=4096, layers=5, hidden=256, ffn=768)
TARGET = Shape(vocab=4096, layers=10, hidden=512, ffn=1536, heads=8, kv_heads=2)
FILE_TYPES = {"drafter": "q8_0", "target": "q4_k_m"}

WEIGHTS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output",
    "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip


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


class Reader(GGUFModule):
    """A dense ``qwen3`` transformer, its angles computed once and a layer as one function, which may be compiled.

    Layer 0 starts as previous-token heads; the last layer and the head run at the asked rows alone.
    """

    run: Callable[[Tensor, Tensor, Tensor, list[Tensor], int], Tensor] = staticmethod(layer)

    def __init__(self, config: Shape, compute: torch.dtype = torch.bfloat16) -> None:
        super().__init__(compute)
        c = self.config = config
        out = (2 * c.layers) ** -0.5
        self.add("token_embd.weight", torch.randn(c.vocab, c.hidden) * 0.06)
        self.add("output_norm.weight", torch.ones(c.hidden))
        for i in range(c.layers):
            b = f"blk.{i}."
            self.add(b + "attn_norm.weight", torch.ones(c.hidden))
            self.add(b + "ffn_norm.weight", torch.ones(c.hidden))
            self.add(b + "attn_q.weight", matrix(c.heads * c.head_dim, c.hidden))
            self.add(b + "attn_k.weight", matrix(c.kv_heads * c.head_dim, c.hidden))
            self.add(b + "attn_v.weight", matrix(c.kv_heads * c.head_dim, c.hidden))
            self.add(b + "attn_output.weight", matrix(c.hidden, c.heads * c.head_dim, out))
            self.add(b + "attn_q_norm.weight", torch.full((c.head_dim,), c.gain))
            self.add(b + "attn_k_norm.weight", torch.full((c.head_dim,), c.gain))
            self.add(b + "ffn_gate.weight", matrix(c.ffn, c.hidden))
            self.add(b + "ffn_up.weight", matrix(c.ffn, c.hidden))
            self.add(b + "ffn_down.weight", matrix(c.hidden, c.ffn, out))
        self.previous_token_heads()

    @torch.no_grad()
    def previous_token_heads(self, pairs: int = 10, gain: float = 2.0) -> None:
        """Layer 0, head h looks h + 1 back: constant q and k in the fastest rotary pairs, q turned back by h + 1.

        Their constant comes from residual dimension 0, which every token embedding starts with (construction of the
        previous-token heads of an induction circuit; the rest of the head stays random).
        """
        c = self.config
        half = c.head_dim // 2
        self.p["token_embd/weight"][:, 0] = 0.12
        theta = c.base ** (-torch.arange(pairs) / half)
        q = self.p["blk/0/attn_q/weight"].view(c.heads, c.head_dim, c.hidden)
        k = self.p["blk/0/attn_k/weight"].view(c.kv_heads, c.head_dim, c.hidden)
        q *= 0.3
        k *= 0.3
        for h in range(c.heads):
            q[h, :pairs, 0] = torch.cos(-theta * (h + 1)) * 2.0
            q[h, half : half + pairs, 0] = torch.sin(-theta * (h + 1)) * 2.0
        k[:, :pairs, 0] = 2.0
        self.p["blk/0/attn_q_norm/weight"].fill_(gain)
        self.p["blk/0/attn_k_norm/weight"].fill_(gain)

    def qkv(self, i: int, h: Tensor, positions: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        c, b = self.config, f"blk.{i}."
        hq, pq = (h, positions) if rows is None else (take(h, rows), positions.gather(1, rows))
        q = self.linear(hq, b + "attn_q.weight").unflatten(-1, (c.heads, c.head_dim))
        k = self.linear(h, b + "attn_k.weight").unflatten(-1, (c.kv_heads, c.head_dim))
        v = self.linear(h, b + "attn_v.weight").unflatten(-1, (c.kv_heads, c.head_dim))
        q = rope(self.norm(q, b + "attn_q_norm.weight"), pq, c.base, c.head_dim)
        k = rope(self.norm(k, b + "attn_k_norm.weight"), positions, c.base, c.head_dim)
        return q, k, v

    def forward(self, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Logits (B, K, vocab) at `rows`."""
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
        return self.linear(self.norm(x, "output_norm.weight"), "token_embd.weight").float()

    def block(self, i: int, x: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """One layer by itself, the last at ``rows`` alone."""
        b, last = f"blk.{i}.", i == self.config.layers - 1
        h = self.norm(x, b + "attn_norm.weight")
        q, k, v = self.qkv(i, h, positions, rows if last else None)
        if last:
            x = take(x, rows)
            o = attend_rows(row_logits(q, k, rows), v)
        else:
            o = attend(q, k, v)
        x = x + self.linear(o.flatten(2), b + "attn_output.weight")
        h = self.norm(x, b + "ffn_norm.weight")
        g = silu(self.linear(h, b + "ffn_gate.weight")) * self.linear(h, b + "ffn_up.weight")
        return x + self.linear(g, b + "ffn_down.weight")


def build(role: str, compute: torch.dtype) -> Reader:
    """A model with random weights; its layer 0 starts as heads that look at previous tokens."""
    return Reader(DRAFTER if role == "drafter" else TARGET, compute)


def formats(model: Reader, role: str) -> dict[str, BlockFormat]:
    """Block format of every weight in the shipped file."""
    named = model.named()
    tied = "output.weight" not in named
    return {
        name: tensor_format(FILE_TYPES[role], name, tuple(value.shape), layers=model.config.layers, tied=tied)
        for name, value in named.items()
    }
