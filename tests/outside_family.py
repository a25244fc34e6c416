"""The family of docs/extending/architecture.md, its code run as it stands there, and what it must compute.

The reference is a dense transformer in float64 with loops over tokens and heads, written from the formulas alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from sp.gguf import GGUFWriter
from sp.models import ARCHITECTURES
from sp.quant import F32, BlockFormat

PAGE = Path(__file__).parents[1] / "docs" / "extending" / "architecture.md"
HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 128, 192, 3, 4, 2, 64, 256
BASE, EPS = 1e4, 1e-5
LEARNED = np.geomspace(2.0, 1e-4, HEAD_DIM // 2).astype(np.float32)


def page_code() -> list[str]:
    """The pieces of Python on the page, in order."""
    return [part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]


if "tern" not in ARCHITECTURES:  # as a file tern.py would be imported
    sys.modules["tern"] = ModuleType("tern")
    exec(page_code()[0], vars(sys.modules["tern"]))


def tern_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights; biases are as large as what they are added to."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (1.3 * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int, centre: float = 1.0, spread: float = 0.2) -> np.ndarray:
        return (centre + spread * rng.standard_normal(size)).astype(np.float32)

    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    out = {
        "token_embd.weight": matrix(VOCAB, HIDDEN),
        "rope_learned.weight": LEARNED,
        "output_norm.weight": vector(HIDDEN),
        "output.weight": matrix(VOCAB, HIDDEN),
    }
    for i in range(LAYERS):
        parts = {
            "attn_norm.weight": vector(HIDDEN),
            "attn_q.weight": matrix(q, HIDDEN),
            "attn_k.weight": matrix(kv, HIDDEN),
            "attn_v.weight": matrix(kv, HIDDEN),
            "attn_q.bias": vector(q, 0.0, 1.0),
            "attn_k.bias": vector(kv, 0.0, 1.0),
            "attn_v.bias": vector(kv, 0.0, 1.0),
            "attn_output.weight": matrix(HIDDEN, q),
            "ffn_norm.weight": vector(HIDDEN),
            "ffn_gate.weight": matrix(FFN, HIDDEN),
            "ffn_up.weight": matrix(FFN, HIDDEN),
            "ffn_down.weight": matrix(HIDDEN, FFN),
        }
        out |= {f"blk.{i}.{name}": value for name, value in parts.items()}
    return out


def write_tern(path: Path, tensors: dict[str, np.ndarray], fmt: BlockFormat = F32, **keys: object) -> Path:
    """A file of the family, matrices in `fmt`; `keys` replace those of its own, with `__` for the dot."""
    named = {
        "block_count": LAYERS,
        "context_length": 4096,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.freq_base": BASE,
    } | {key.replace("__", "."): value for key, value in keys.items()}
    writer = GGUFWriter(path, {"general.architecture": "tern"} | {f"tern.{key}": value for key, value in named.items()})
    for name, value in tensors.items():
        kept = F32 if value.ndim == 1 else fmt
        writer.add(name, value.shape, kept, kept.encode(value))
    return writer.write()


@dataclass(frozen=True)
class Variant:
    """What a reference may leave out or do another way, to see that it matters."""

    biased: bool = True
    interleaved: bool = True
    learned: bool = True


def tern_logits(
    tensors: dict[str, np.ndarray], ids: np.ndarray, positions: np.ndarray, variant: Variant = Variant()
) -> np.ndarray:
    """Logits of every token: float64 (n, vocab)."""
    w = {name: value.astype(np.float64) for name, value in tensors.items()}
    x = w["token_embd.weight"][ids]
    for i in range(LAYERS):
        blk = f"blk.{i}."
        h = _normed(x, w[f"{blk}attn_norm.weight"])
        q, k, v = (h @ w[f"{blk}attn_{part}.weight"].T + variant.biased * w[f"{blk}attn_{part}.bias"] for part in "qkv")
        mixed = np.zeros((len(ids), HEADS * HEAD_DIM))
        for head in range(HEADS):
            mine = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            group = head * KV_HEADS // HEADS
            its = slice(group * HEAD_DIM, (group + 1) * HEAD_DIM)
            query, key = (_turned(part, positions, variant) for part in (q[:, mine], k[:, its]))
            for t in range(len(ids)):
                score = key[: t + 1] @ query[t] / np.sqrt(HEAD_DIM)
                weight = np.exp(score - score.max())
                mixed[t, mine] = weight / weight.sum() @ v[: t + 1, its]
        x = x + mixed @ w[f"{blk}attn_output.weight"].T
        h = _normed(x, w[f"{blk}ffn_norm.weight"])
        gate = h @ w[f"{blk}ffn_gate.weight"].T
        x = x + gate / (1 + np.exp(-gate)) * (h @ w[f"{blk}ffn_up.weight"].T) @ w[f"{blk}ffn_down.weight"].T
    return _normed(x, w["output_norm.weight"]) @ w["output.weight"].T


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def _turned(x: np.ndarray, positions: np.ndarray, variant: Variant) -> np.ndarray:
    """Heads (n, head_dim) turned pair by pair."""
    out = np.empty_like(x)
    for j in range(HEAD_DIM // 2):
        frequency = float(LEARNED[j]) if variant.learned else BASE ** (-2 * j / HEAD_DIM)
        a, b = (2 * j, 2 * j + 1) if variant.interleaved else (j, j + HEAD_DIM // 2)
        turn = (x[:, a] + 1j * x[:, b]) * np.exp(1j * positions * frequency)
        out[:, a], out[:, b] = turn.real, turn.imag
    return out
