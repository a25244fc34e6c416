"""A family from outside the package, in one record, and what it must compute.

`gull` has windows in all but every third layer, where RoPE is another one; norms behind both halves; GELU; norms of
heads; and embeddings times the root of the hidden size. The reference is a transformer in float64 with loops over
heads and tokens, written from the formulas alone.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np

from sp.gguf import GGUFWriter
from sp.models import ARCHITECTURES, Architecture, ModelConfig, register_architecture
from sp.models.families.shared import shared_config
from sp.models.layer.spec import LayerSpec
from sp.ops.rope import Rope
from sp.quant import F32, BlockFormat

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 128, 192, 4, 4, 2, 64, 256
EPS, BASE, LOCAL_BASE, WINDOW, EVERY = 1e-5, 1e5, 1e3, 70, 3


def config(keys, file) -> ModelConfig:
    """The family's own keys, beside those of all."""
    shared = shared_config(keys, file)
    window, local = keys.count("attention.sliding_window"), keys.real("rope.freq_base_swa", above=0.0)
    windows = tuple(None if (layer + 1) % EVERY == 0 else window for layer in range(shared.layers))
    return replace(
        shared, windows=windows, local_rope=Rope(local, shared.head_dim), embedding_scale=float(sqrt(shared.hidden))
    )


def layer(config: ModelConfig, index: int) -> LayerSpec:
    """What a layer computes."""
    window = config.windows[index]
    return LayerSpec(
        post_norms=("post_attention_norm", "post_ffw_norm"),
        activation="gelu",
        window=window,
        rope=None if window is None else config.local_rope,
    )


if "gull" not in ARCHITECTURES:
    register_architecture(
        Architecture("gull", layer, ("qwen2",), config=config, honours=("attention.sliding_window",))
    )  # fmt: skip


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (1.3 * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int) -> np.ndarray:
        return (1 + 0.2 * rng.standard_normal(size)).astype(np.float32)

    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found = {"token_embd.weight": matrix(VOCAB, HIDDEN) / 8, "output_norm.weight": vector(HIDDEN)}
    for i in range(LAYERS):
        parts = {
            "attn_norm": vector(HIDDEN), "attn_q": matrix(q, HIDDEN), "attn_k": matrix(kv, HIDDEN),
            "attn_v": matrix(kv, HIDDEN), "attn_output": matrix(HIDDEN, q), "attn_q_norm": vector(HEAD_DIM),
            "attn_k_norm": vector(HEAD_DIM), "post_attention_norm": vector(HIDDEN), "ffn_norm": vector(HIDDEN),
            "ffn_gate": matrix(FFN, HIDDEN), "ffn_up": matrix(FFN, HIDDEN), "ffn_down": matrix(HIDDEN, FFN),
            "post_ffw_norm": vector(HIDDEN),
        }  # fmt: skip
        found |= {f"blk.{i}.{name}.weight": value for name, value in parts.items()}
    return found


def write(path: Path, held: dict[str, np.ndarray], fmt: BlockFormat = F32, window: int = WINDOW) -> Path:
    """A file of the family, matrices in `fmt`; the head is the embedding."""
    keys = {
        "block_count": LAYERS, "context_length": 4096, "embedding_length": HIDDEN, "feed_forward_length": FFN,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": BASE,
        "rope.freq_base_swa": LOCAL_BASE, "attention.sliding_window": window,
    }  # fmt: skip
    writer = GGUFWriter(path, {"general.architecture": "gull"} | {f"gull.{key}": value for key, value in keys.items()})
    for name, value in held.items():
        kept = F32 if value.ndim == 1 else fmt
        writer.add(name, value.shape, kept, kept.encode(value))
    return writer.write()


CHANGES = ("window", "local", "behind", "gelu", "scaled")
"""What a reference may leave out, to see that it matters."""


def logits(held: dict[str, np.ndarray], ids: np.ndarray, positions: np.ndarray, without: str = "") -> np.ndarray:
    """Logits of every token: float64 (n, vocab)."""
    w = {name: value.astype(np.float64) for name, value in held.items()}
    x = w["token_embd.weight"][ids] * (1 if without == "scaled" else sqrt(HIDDEN))
    for i in range(LAYERS):
        part = {name.split(".")[2]: value for name, value in w.items() if name.startswith(f"blk.{i}.")}
        local = (i + 1) % EVERY != 0
        base = LOCAL_BASE if local and without != "local" else BASE
        h = _normed(x, part["attn_norm"])
        q, k, v = (h @ part[f"attn_{one}"].T for one in "qkv")
        mixed = np.zeros((len(ids), HEADS * HEAD_DIM))
        for head in range(HEADS):
            mine = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            group = head * KV_HEADS // HEADS
            its = slice(group * HEAD_DIM, (group + 1) * HEAD_DIM)
            query = _turned(_normed(q[:, mine], part["attn_q_norm"]), positions, base)
            key = _turned(_normed(k[:, its], part["attn_k_norm"]), positions, base)
            for t in range(len(ids)):
                hidden = positions[: t + 1] <= positions[t] - WINDOW
                first = int(hidden.sum()) if local and without != "window" else 0
                score = key[first : t + 1] @ query[t] / np.sqrt(HEAD_DIM)
                weight = np.exp(score - score.max())
                mixed[t, mine] = weight / weight.sum() @ v[first : t + 1, its]
        y = mixed @ part["attn_output"].T
        x = x + (y if without == "behind" else _normed(y, part["post_attention_norm"]))
        h = _normed(x, part["ffn_norm"])
        gate = h @ part["ffn_gate"].T
        if without == "gelu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        y = gate * (h @ part["ffn_up"].T) @ part["ffn_down"].T
        x = x + (y if without == "behind" else _normed(y, part["post_ffw_norm"]))
    found: np.ndarray = _normed(x, w["output_norm.weight"]) @ w["token_embd.weight"].T
    return found


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def _turned(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """A head (n, head_dim), its halves turned against each other."""
    half = HEAD_DIM // 2
    angles = positions[:, None] * base ** (-2 * np.arange(half) / HEAD_DIM)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)
