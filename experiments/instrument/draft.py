"""The draft of the target: DFlash blocks (block diffusion, https://arxiv.org/abs/2602.06036) at the pair's size.

A block is the last known token and then masks; all its tokens see one another and, as keys and values made of the
target's features, whatever the target has read before the known token. Conventions: ``sp.models.drafts.dflash``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from layers import GGUFModule, matrix, rope, row_logits
from shapes import Reader, Shape
from torch import Tensor
from torch.nn.functional import embedding, linear, silu


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of the draft; ``target_layers`` are counted by their output from 0."""

    layers: int = 3
    hidden: int = 512
    ffn: int = 256
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 128
    base: float = 1e20  # three quarters of the rotary pairs turn by less than a radian over 64K tokens: for content
    gain: float = 1.4
    block: int = 16
    mask_id: int = 0  # <|endoftext|>, which no prompt holds
    target_layers: tuple[int, ...] = (2, 6, 10)


class Draft(GGUFModule):
    """Embedding and head are the target's and stay as they are."""

    def __init__(self, config: DraftConfig, compute: torch.dtype = torch.bfloat16) -> None:
        super().__init__(compute)
        c = self.config = config
        q, kv, out = c.heads * c.head_dim, c.kv_heads * c.head_dim, (2 * c.layers) ** -0.5
        self.add("fc.weight", matrix(c.hidden, len(c.target_layers) * c.hidden))
        self.add("enc.output_norm.weight", torch.ones(c.hidden))
        for i in range(c.layers):
            b = f"blk.{i}."
            self.add(b + "attn_norm.weight", torch.ones(c.hidden))
            self.add(b + "attn_q.weight", matrix(q, c.hidden))
            self.add(b + "attn_k.weight", matrix(kv, c.hidden))
            self.add(b + "attn_v.weight", matrix(kv, c.hidden))
            self.add(b + "attn_output.weight", matrix(c.hidden, q, 2 * out))
            self.add(b + "attn_q_norm.weight", torch.full((c.head_dim,), c.gain))
            self.add(b + "attn_k_norm.weight", torch.full((c.head_dim,), c.gain))
            self.add(b + "ffn_norm.weight", torch.ones(c.hidden))
            self.add(b + "ffn_gate.weight", matrix(c.ffn, c.hidden))
            self.add(b + "ffn_up.weight", matrix(c.ffn, c.hidden))
            self.add(b + "ffn_down.weight", matrix(c.hidden, c.ffn, out))
        self.add("output_norm.weight", torch.ones(c.hidden))

    def heads(self, x: Tensor, name: str) -> Tensor:
        return self.linear(x, name).unflatten(-1, (-1, self.config.head_dim))

    def turn(self, x: Tensor, name: str, positions: Tensor) -> Tensor:
        return rope(self.norm(x, name), positions, self.config.base, self.config.head_dim)

    def attention(
        self, i: int, x: Tensor, fused: Tensor, positions: Tensor, at: Tensor, rows: Tensor, blocks: int
    ) -> Tensor:
        """Attention of layer ``i``."""
        c, b = self.config, f"blk.{i}."
        h = self.norm(x, b + "attn_norm.weight")
        q = self.turn(self.heads(h, b + "attn_q.weight"), b + "attn_q_norm.weight", at)
        k = self.turn(self.heads(h, b + "attn_k.weight"), b + "attn_k_norm.weight", at)
        v = self.heads(h, b + "attn_v.weight")
        past_k = self.turn(self.heads(fused, b + "attn_k.weight"), b + "attn_k_norm.weight", positions)
        past_v = self.heads(fused, b + "attn_v.weight")
        group = c.heads // c.kv_heads
        q1, k1, v1 = (t.unflatten(1, (blocks, c.block)) for t in (q, k, v))
        k1, v1 = k1.repeat_interleave(group, 3), v1.repeat_interleave(group, 3)
        inner = torch.einsum("bnqhd,bnkhd->bhnqk", q1, k1).float().flatten(2, 3) * c.head_dim**-0.5
        logits = torch.cat([row_logits(q, past_k, rows), inner], -1)
        p = logits.softmax(-1).to(v.dtype)
        length = past_k.shape[1]
        outer = p[..., :length].unflatten(1, (c.kv_heads, group)).flatten(2, 3) @ past_v.transpose(1, 2)
        outer = outer.unflatten(2, (group, -1)).flatten(1, 2).transpose(1, 2)
        own = torch.einsum("bhnqk,bnkhd->bnqhd", p[..., length:].unflatten(2, (blocks, c.block)), v1).flatten(1, 2)
        return self.linear((outer + own).flatten(2), b + "attn_output.weight")

    def forward(
        self,
        embed: Tensor,
        head: Tensor,
        features: Tensor,
        positions: Tensor,
        tokens: Tensor,
        starts: Tensor,
    ) -> Tensor:
        """Logits (B, N, block - 1, vocab) of the tokens after each start.

        ``embed``, ``head`` (vocab, hidden): the target's; ``features`` (B, L, target_layers * hidden); ``positions``
        (B, L); ``tokens``, ``starts`` (B, N): the known tokens and their indices.
        """
        c = self.config
        n = starts.shape[1]
        fused = self.norm(self.linear(features, "fc.weight"), "enc.output_norm.weight")
        ids = torch.full((*tokens.shape, c.block), c.mask_id, device=tokens.device)
        ids[..., 0] = tokens
        x = embedding(ids, embed).float().flatten(1, 2)
        step = torch.arange(c.block, device=ids.device)
        at = (positions.gather(1, starts)[..., None] + step).flatten(1)
        rows = (starts - 1).repeat_interleave(c.block, 1)
        for i in range(c.layers):
            x = x + self.attention(i, x, fused, positions, at, rows, n)
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            g = silu(self.linear(h, f"blk.{i}.ffn_gate.weight")) * self.linear(h, f"blk.{i}.ffn_up.weight")
            x = x + self.linear(g, f"blk.{i}.ffn_down.weight")
        x = x.unflatten(1, (n, c.block))[:, :, 1:].flatten(1, 2)
        h = self.norm(x, "output_norm.weight").to(self.compute)
        return linear(h, head.to(self.compute)).float().unflatten(1, (n, c.block - 1))


def still_dims(config: Shape, tokens: int = 65_536) -> Tensor:
    """Dimensions of a head that turn by less than a radian over so many tokens; in halves of pairs."""
    half = config.head_dim // 2
    slow = torch.arange(math.ceil(half * math.log(tokens) / math.log(config.base)), half)
    return torch.cat([slow, slow + half])


@torch.no_grad()
def start_from_heads(draft: Draft, target: Reader, layer: int, heads: Sequence[int], noise: float = 0.2) -> None:
    """Let all layers but the first start with the match that some heads of a layer of the target make.

    Keys: f starts as the input of that layer, and the heads' key matrices are the target's. Queries: the same vector of
    the last token read, which layer 0 hands on. What turns in the target's heads is left to chance, what does not turn
    goes to the slowest rotary pairs.
    """
    c, t, n = draft.config, target.config, layer
    from_dims = still_dims(t)
    half, still = c.head_dim // 2, len(from_dims) // 2
    eye = torch.eye(c.hidden)
    fc = draft.p["fc/weight"]
    fc *= noise
    at = c.target_layers.index(n - 1) * c.hidden
    fc[:, at : at + c.hidden] += eye
    draft.p["blk/0/attn_v/weight"].mul_(noise).add_(eye)
    draft.p["blk/0/attn_output/weight"].mul_(noise).add_(2 * eye)
    slow = torch.cat([torch.arange(half - still, half), torch.arange(c.head_dim - still, c.head_dim)])
    unit = target.p[f"blk/{n}/attn_norm/weight"].float()
    per = t.heads // t.kv_heads
    for own in range(1, c.layers):
        for j, head in enumerate(heads):
            q = target.p[f"blk/{n}/attn_q/weight"].float().unflatten(0, (t.heads, -1, t.head_dim))[head, 0] * unit
            k = target.p[f"blk/{n}/attn_k/weight"].float().unflatten(0, (t.kv_heads, t.head_dim))[head // per] * unit
            for name, value in (("attn_q", q), ("attn_k", k)):
                rows = draft.p[f"blk/{own}/{name}/weight"][j * c.head_dim : (j + 1) * c.head_dim]
                rows *= noise
                rows[slow] = value[from_dims]
        for name in ("attn_q_norm", "attn_k_norm"):
            draft.p[f"blk/{own}/{name}/weight"][slow] = target.p[f"blk/{n}/{name}/weight"][from_dims].float()
