"""Gemma 3 in float64, from the formulas of its report and a file's weights as gguf's own decoder has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

LARGE = 62  # layers of the 27B


class File:
    """Keys of a file, and its tensors by name, decoded when they are asked for."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        reader = GGUFReader(path)
        self._fields, self._tensors = reader.fields, {tensor.name: tensor for tensor in reader.tensors}

    def key(self, name: str, default: float | None = None) -> float:
        """A number of the family's own."""
        field = self._fields.get(f"gemma3.{name}")
        return default if field is None else field.contents()

    def rows(self, name: str, ids: np.ndarray | None = None) -> np.ndarray:
        """A tensor, or some of its rows: float64."""
        from gguf.quants import dequantize

        tensor = self._tensors[f"{name}.weight"]
        data = tensor.data if ids is None else tensor.data[ids]
        return dequantize(data, tensor.tensor_type).astype(np.float64)


def logits(path: Path, ids: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
    """Logits of the last tokens: float64 (rows, vocab)."""
    w = File(path)
    layers, hidden, eps = (w.key(k) for k in ("block_count", "embedding_length", "attention.layer_norm_rms_epsilon"))
    heads, dim, window = (w.key(f"attention.{k}") for k in ("head_count", "key_length", "sliding_window"))
    every, base, local_base = 6, w.key("rope.freq_base"), w.key("rope.freq_base_swa", 1e4)
    scale = (hidden / heads if layers == LARGE else dim) ** -0.5

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w.rows(name)

    x = w.rows("token_embd", ids) * np.sqrt(hidden)
    back = positions[:, None] - positions
    for i in range(layers):
        local = (i + 1) % every != 0
        seen = (back >= 0) & (back < (window if local else 1 << 60))
        h = normed(x, f"blk.{i}.attn_norm")
        q, k, v = ((h @ w.rows(f"blk.{i}.attn_{one}").T).reshape(len(ids), -1, dim) for one in "qkv")
        q = _turned(normed(q, f"blk.{i}.attn_q_norm"), positions, local_base if local else base)
        k = _turned(normed(k, f"blk.{i}.attn_k_norm"), positions, local_base if local else base)
        mixed = np.empty_like(q)
        for head in range(heads):
            group = head * k.shape[1] // heads
            score = np.where(seen, scale * q[:, head] @ k[:, group].T, -np.inf)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            mixed[:, head] = weight / weight.sum(axis=1, keepdims=True) @ v[:, group]
        y = mixed.reshape(len(ids), -1) @ w.rows(f"blk.{i}.attn_output").T
        x = x + normed(y, f"blk.{i}.post_attention_norm")
        h = normed(x, f"blk.{i}.ffn_norm")
        gate, up = (h @ w.rows(f"blk.{i}.ffn_{one}").T for one in ("gate", "up"))
        gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + normed((gate * up) @ w.rows(f"blk.{i}.ffn_down").T, f"blk.{i}.post_ffw_norm")
    found: np.ndarray = normed(x[len(ids) - rows :], "output_norm") @ w.rows("token_embd").T
    return found


def _turned(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """Heads (n, heads, dim), their halves turned against each other."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * positions[:, None, None] * base ** (-np.arange(half) / half))
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)
