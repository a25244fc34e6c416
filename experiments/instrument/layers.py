"""Shared parts: parameters under GGUF names, norms, rotary positions, read-out attention, fake quantisation."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

EPS = 1e-6


class GGUFModule(nn.Module):
    """Parameters keyed by GGUF tensor name ('/' stands for '.', which PyTorch forbids)."""

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__()
        self.p = nn.ParameterDict()
        self.compute = compute
        self.bits: dict[str, int] = {}  # fake quantisation: tensor name -> bits (4, 6 or 8); empty = off

    def add(self, name: str, value: Tensor) -> None:
        self.p[name.replace(".", "/")] = nn.Parameter(value)

    def w(self, name: str) -> Tensor:
        value = self.p[name.replace(".", "/")]
        bits = self.bits.get(name, 0)
        return fake_quant(value, bits) if bits else value

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x.to(self.compute), self.w(name).to(self.compute))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.w(name).to(x.dtype), EPS)

    def named(self) -> dict[str, Tensor]:
        return {k.replace("/", "."): v for k, v in self.p.items()}

    @property
    def head(self) -> str:
        """Name of the matrix that makes logits: the embedding where the two are tied."""
        return "output.weight" if "output/weight" in self.p else "token_embd.weight"

    def groups(self, decay: float) -> list[dict]:
        """AdamW groups: decay on matrices only (not on norms, gains, biases, embeddings)."""
        yes = [v for k, v in self.p.items() if v.ndim == 2 and "token_embd" not in k and "conv" not in k]
        no = [v for k, v in self.p.items() if not (v.ndim == 2 and "token_embd" not in k and "conv" not in k)]
        return [{"params": yes, "weight_decay": decay}, {"params": no, "weight_decay": 0.0}]


def fake_quant(w: Tensor, bits: int) -> Tensor:
    """Round to the block format's grid (4: per 32 affine, 6: per 16, 8: per 32), straight-through gradient."""
    with torch.no_grad():
        if bits == 4:
            b = w.reshape(-1, 32)
            low = b.amin(1, keepdim=True).clamp(max=0)
            step = ((b.amax(1, keepdim=True) - low) / 15).clamp(min=1e-8)
            q = ((b - low) / step).round() * step + low
        else:
            b = w.reshape(-1, 16 if bits == 6 else 32)
            step = (b.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)).clamp(min=1e-8)
            q = (b / step).round() * step
        delta = q.reshape(w.shape) - w
    return w + delta


def rope(x: Tensor, positions: Tensor, base: float, dims: int) -> Tensor:
    """NeoX rotary embedding of the first ``dims`` of (B, L, heads, d); angles in float32."""
    half = dims // 2
    inv = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[..., None].float() * inv
    c, s = angle.cos()[:, :, None], angle.sin()[:, :, None]
    a, b = x[..., :half].float(), x[..., half:dims].float()
    return torch.cat([(a * c - b * s).to(x.dtype), (a * s + b * c).to(x.dtype), x[..., dims:]], -1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, (B, L, heads, d) with grouped KV heads."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of (B, L, ...) -> (B, K, ...)."""
    index = rows.reshape(*rows.shape, *([1] * (x.ndim - 2))).expand(-1, -1, *x.shape[2:])
    return x.gather(1, index)


def row_logits(q: Tensor, k: Tensor, rows: Tensor) -> Tensor:
    """Masked attention logits (B, heads, K, L) of the given rows only."""
    b, n, heads, d = q.shape
    kv = k.shape[2]
    qg = q.reshape(b, n, kv, heads // kv, d).permute(0, 2, 3, 1, 4).reshape(b, kv, heads // kv * n, d)
    logits = (qg @ k.permute(0, 2, 3, 1)).float().reshape(b, heads, n, -1) / math.sqrt(d)
    keys = torch.arange(k.shape[1], device=q.device)
    return logits.masked_fill(keys > rows[:, None, :, None], float("-inf"))


def attend_rows(logits: Tensor, v: Tensor) -> Tensor:
    """Softmax of :func:`row_logits` times (B, L, kv, d) -> (B, K, heads, d)."""
    b, heads, n, _ = logits.shape
    kv = v.shape[2]
    p = logits.softmax(-1).to(v.dtype).reshape(b, kv, heads // kv * n, -1)
    out = p @ v.transpose(1, 2)
    return out.reshape(b, heads, n, -1).transpose(1, 2)


def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
    return torch.randn(rows, columns) * (gain / math.sqrt(columns))
