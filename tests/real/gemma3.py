"""Gemma 3 in float64, from the formulas of its report and a file's weights as gguf's own decoder has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

EPS, EVERY, WINDOW, BASE, LOCAL_BASE = 1e-6, 6, 512, 1e6, 1e4


class Weights:
    """Tensors of a file by name, decoded when they are asked for."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self._tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}

    def rows(self, name: str, ids: np.ndarray | None = None) -> np.ndarray:
        """A tensor, or some of its rows: float64."""
        from gguf.quants import dequantize

        tensor = self._tensors[f"{name}.weight"]
        data = tensor.data if ids is None else tensor.data[ids]
        return dequantize(data, tensor.tensor_type).astype(np.float64)


def logits(path: Path, ids: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
    """Logits of the last tokens: float64 (rows, vocab)."""
    w = Weights(path)
    layers = 1 + max(int(name.split(".")[1]) for name in w._tensors if name.startswith("blk."))
    hidden = w.rows("output_norm").size
    x = w.rows("token_embd", ids) * np.sqrt(hidden)
    back = np.arange(len(ids))[:, None] - np.arange(len(ids))
    for i in range(layers):
        local = (i + 1) % EVERY != 0
        seen = (back >= 0) & (back < (WINDOW if local else len(ids)))
        h = _normed(x, w.rows(f"blk.{i}.attn_norm"))
        q, k, v = (h @ w.rows(f"blk.{i}.attn_{one}").T for one in "qkv")
        dim = w.rows(f"blk.{i}.attn_q_norm").size
        q, k, v = (part.reshape(len(ids), -1, dim) for part in (q, k, v))
        base = LOCAL_BASE if local else BASE
        q = _turned(_normed(q, w.rows(f"blk.{i}.attn_q_norm")), positions, base)
        k = _turned(_normed(k, w.rows(f"blk.{i}.attn_k_norm")), positions, base)
        group = q.shape[1] // k.shape[1]
        mixed = np.empty_like(q)
        for head in range(q.shape[1]):
            score = np.where(seen, q[:, head] @ k[:, head // group].T / np.sqrt(dim), -np.inf)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            mixed[:, head] = weight / weight.sum(axis=1, keepdims=True) @ v[:, head // group]
        y = mixed.reshape(len(ids), -1) @ w.rows(f"blk.{i}.attn_output").T
        x = x + _normed(y, w.rows(f"blk.{i}.post_attention_norm"))
        h = _normed(x, w.rows(f"blk.{i}.ffn_norm"))
        gate, up = (h @ w.rows(f"blk.{i}.ffn_{one}").T for one in ("gate", "up"))
        gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + _normed((gate * up) @ w.rows(f"blk.{i}.ffn_down").T, w.rows(f"blk.{i}.post_ffw_norm"))
    found: np.ndarray = _normed(x[len(ids) - rows :], w.rows("output_norm")) @ w.rows("token_embd").T
    return found


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def _turned(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """Heads (n, heads, dim), their halves turned against each other."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * positions[:, None, None] * base ** (-np.arange(half) / half))
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)
