"""Small random models as GGUF files, and copies of files with something changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sp.gguf import GGUFFile, GGUFWriter
from sp.quant import F32, BlockFormat

QWEN3 = {
    "block_count": 3,
    "context_length": 4096,
    "embedding_length": 40,
    "feed_forward_length": 48,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6,
}
QWEN35 = QWEN3 | {
    "block_count": 6,  # full attention in layers 2 and 5
    "rope.dimension_count": 16,
    "full_attention_interval": 3,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 96,
}
KEYS = {"qwen3": QWEN3, "qwen35": QWEN35}
VOCAB = 53


def random_tensors(arch: str, keys: dict, seed: int) -> dict[str, np.ndarray]:
    """Every tensor the keys ask for."""
    rng = np.random.default_rng(seed)
    hidden, ffn = keys["embedding_length"], keys["feed_forward_length"]
    q = keys["attention.head_count"] * keys["attention.key_length"]
    kv = keys["attention.head_count_kv"] * keys["attention.key_length"]
    out: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        out[name] = (1.3 * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(name: str, size: int, centre: float = 1.0) -> None:
        out[name] = (centre + 0.2 * rng.standard_normal(size)).astype(np.float32)

    matrix("token_embd.weight", VOCAB, hidden)
    vector("output_norm.weight", hidden)
    if arch == "qwen35":
        matrix("output.weight", VOCAB, hidden)
    for i in range(keys["block_count"]):
        blk = f"blk.{i}."
        vector(f"{blk}attn_norm.weight", hidden)
        vector(f"{blk}{'post_attention_norm' if arch == 'qwen35' else 'ffn_norm'}.weight", hidden)
        matrix(f"{blk}ffn_gate.weight", ffn, hidden)
        matrix(f"{blk}ffn_up.weight", ffn, hidden)
        matrix(f"{blk}ffn_down.weight", hidden, ffn)
        if arch == "qwen3" or (i + 1) % keys["full_attention_interval"] == 0:
            matrix(f"{blk}attn_q.weight", q * (2 if arch == "qwen35" else 1), hidden)
            matrix(f"{blk}attn_k.weight", kv, hidden)
            matrix(f"{blk}attn_v.weight", kv, hidden)
            matrix(f"{blk}attn_output.weight", hidden, q)
            vector(f"{blk}attn_q_norm.weight", keys["attention.key_length"])
            vector(f"{blk}attn_k_norm.weight", keys["attention.key_length"])
            continue
        d, heads = keys["ssm.state_size"], keys["ssm.time_step_rank"]
        channels = (2 * keys["ssm.group_count"] + heads) * d
        matrix(f"{blk}attn_qkv.weight", channels, hidden)
        matrix(f"{blk}attn_gate.weight", heads * d, hidden)
        matrix(f"{blk}ssm_alpha.weight", heads, hidden)
        matrix(f"{blk}ssm_beta.weight", heads, hidden)
        matrix(f"{blk}ssm_out.weight", hidden, heads * d)
        matrix(f"{blk}ssm_conv1d.weight", channels, keys["ssm.conv_kernel"])
        out[f"{blk}ssm_a"] = -rng.uniform(0.01, 1, heads).astype(np.float32)
        vector(f"{blk}ssm_dt.bias", heads, 0.0)
        vector(f"{blk}ssm_norm.weight", d)
    return out


def write_tiny(path: Path, arch: str, *, seed: int = 0, fmt: BlockFormat = F32, **changes: object) -> Path:
    """A small random model, matrices in `fmt`; `changes` replace keys, with `__` for the dot."""
    keys = KEYS[arch] | {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {"general.architecture": arch} | {f"{arch}.{name}": value for name, value in keys.items()}
    writer = GGUFWriter(path, metadata)
    for name, value in random_tensors(arch, keys, seed).items():
        kept = F32 if value.ndim == 1 or "conv1d" in name else fmt
        writer.add(name, value.shape, kept, kept.encode(value))
    return writer.write()


def rewritten(source: Path, target: Path, tensors: dict[str, np.ndarray | None], **keys: object) -> Path:
    """A copy of `source` with tensors or metadata keys added or replaced, or dropped where the value is None."""
    with GGUFFile.open(source) as file:
        values = {name: file.weight(name).dense().copy() for name in file.tensors} | tensors
        metadata = {k: v for k, v in (dict(file.metadata) | keys).items() if v is not None}
    writer = GGUFWriter(target, metadata)
    for name, value in values.items():
        if value is not None:
            writer.add(name, value.shape, F32, F32.encode(value))
    return writer.write()
