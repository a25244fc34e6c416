"""The drafter in PyTorch, for training alone: weights of a GGUF file of family `llama`, read by gguf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from gguf import GGUFReader, dequantize

from sp.ops.rope import Rope, YarnScaling


class Drafter:
    """Frozen weights, and what is read of them."""

    def __init__(self, path: Path, device: str) -> None:
        reader = GGUFReader(path)

        def number(key: str) -> float:
            return reader.fields[f"llama.{key}"].contents()

        self.layers, self.window = int(number("block_count")), int(number("context_length"))
        self.heads, self.kv_heads = int(number("attention.head_count")), int(number("attention.head_count_kv"))
        self.base, self.eps = number("rope.freq_base"), number("attention.layer_norm_rms_epsilon")
        self.device, self.w = device, {}
        for tensor in reader.tensors:
            dense = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
            self.w[tensor.name] = dense.to(device, torch.float32 if dense.ndim == 1 else self.dtype)
        self.hidden = self.w["token_embd.weight"].shape[1]
        self.head_dim = self.hidden // self.heads

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def turns(self, positions: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (tokens, head_dim / 2) at a YaRN factor."""
        scaling = YarnScaling(float(factor), self.window) if factor > 1 else None
        rope = Rope(self.base, self.head_dim, scaling=scaling)
        size = scaling.attention_factor if scaling else 1.0
        angle = positions.double()[..., None] * torch.from_numpy(np.asarray(rope.inverse_frequencies)).to(self.device)
        return (angle.cos() * size).float(), (angle.sin() * size).float()

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.w[f"{name}.weight"]

    def rotate(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Neighbouring pairs of (..., tokens, heads, head_dim)."""
        cos, sin = (t[..., None, :] for t in turns)
        a, b = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)

    def project(self, h: torch.Tensor, layer: int) -> list[torch.Tensor]:
        """Queries, keys and values (..., tokens, heads, head_dim), not rotated."""
        h = h.to(self.dtype)
        split = [(h @ self.w[f"blk.{layer}.attn_{n}.weight"].T).unflatten(-1, (-1, self.head_dim)) for n in "qkv"]
        return split

    def rest(self, x: torch.Tensor, attended: torch.Tensor, layer: int) -> torch.Tensor:
        """The stream behind a layer."""
        x = x + (attended.flatten(-2).to(self.dtype) @ self.w[f"blk.{layer}.attn_output.weight"].T).float()
        h = self.norm(x, f"blk.{layer}.ffn_norm").to(self.dtype)
        wide = F.silu(h @ self.w[f"blk.{layer}.ffn_gate.weight"].T) * (h @ self.w[f"blk.{layer}.ffn_up.weight"].T)
        return x + (wide @ self.w[f"blk.{layer}.ffn_down.weight"].T).float()

    @torch.no_grad()
    def read(
        self, ids: torch.Tensor, questions: torch.Tensor, taken: tuple[int, ...], factor: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """What layers make of a document (n,), and of questions (b, m) behind it, each by itself: not rotated.

        By layer and letter, as in ``k18``: keys and values (n, kv_heads x head_dim), queries (b, m, heads x head_dim),
        and the normed hidden states ``h``. Padding of questions comes last.
        """
        n, m = len(ids), questions.shape[1]
        place = torch.arange(n + m, device=self.device)
        turns = self.turns(place, factor)
        own, after = tuple(t[:n] for t in turns), tuple(t[n:] for t in turns)
        x, y = (self.w["token_embd.weight"][i].float() for i in (ids, questions))
        causal = torch.ones(m, m, dtype=torch.bool, device=self.device).tril()
        document, asked = {}, {}
        for layer in range(max(taken) + 1):
            h, g = self.norm(x, f"blk.{layer}.attn_norm"), self.norm(y, f"blk.{layer}.attn_norm")
            (q, k, v), (qq, kk, vv) = self.project(h, layer), self.project(g, layer)
            if layer in taken:
                document |= {f"h{layer}": h, f"k{layer}": k.flatten(1), f"v{layer}": v.flatten(1)}
                asked |= {f"h{layer}": g, f"q{layer}": qq.flatten(2)}
            if layer == max(taken):
                break
            q, k, qq, kk = self.rotate(q, own), self.rotate(k, own), self.rotate(qq, after), self.rotate(kk, after)
            heads = [t.transpose(0, 1)[None] for t in (q, k, v)]
            out = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
            group = self.heads // self.kv_heads
            scale = self.head_dim**-0.5
            grouped = qq.unflatten(2, (self.kv_heads, group))  # (b, m, kv, group, d)
            far = torch.einsum("bmkgd,nkd->bkgmn", grouped, k).float() * scale
            near = torch.einsum("bmkgd,bjkd->bkgmj", grouped, kk).float() * scale
            near = near.masked_fill(~causal, -torch.inf)
            weights = torch.cat([far, near], -1).softmax(-1).to(self.dtype)
            seen = torch.einsum("bkgmn,nkd->bmkgd", weights[..., :n], v)
            seen = seen + torch.einsum("bkgmj,bjkd->bmkgd", weights[..., n:], vv)
            x, y = self.rest(x, out, layer), self.rest(y, seen.flatten(2, 3), layer)
        return document, asked
