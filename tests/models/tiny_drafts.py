"""Small random DFlash drafts for the tiny models, in every kind of file there is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sp.gguf import GGUFFile, GGUFWriter
from sp.models.config import ModelConfig
from sp.models.drafts.dflash import PUBLISHED_PARTS
from sp.models.drafts.dflash_config import PUBLISHED
from sp.quant import F32, BlockFormat

LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 5, 4, 2, 32, 64
BLOCK, MASK, WINDOW, BASE = 6, 3, 20, 1e7
SLIDING = (True, True, True, True, False)
KINDS = ("dflash", "dflash-draft", "qwen35-dflash-draft", "safetensors")


def draft_tensors(hidden: int, features: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of a draft under the names of this project."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (1.2 * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int) -> np.ndarray:
        return (1 + 0.2 * rng.standard_normal(size)).astype(np.float32)

    out = {
        "fc.weight": matrix(hidden, features * hidden),
        "hidden_norm.weight": vector(hidden),
        "output_norm.weight": vector(hidden),
    }
    for i in range(LAYERS):
        parts = {
            "attn_norm": vector(hidden),
            "attn_q": matrix(HEADS * HEAD_DIM, hidden),
            "attn_k": matrix(KV_HEADS * HEAD_DIM, hidden),
            "attn_v": matrix(KV_HEADS * HEAD_DIM, hidden),
            "attn_output": matrix(hidden, HEADS * HEAD_DIM),
            "attn_q_norm": vector(HEAD_DIM),
            "attn_k_norm": vector(HEAD_DIM),
            "ffn_norm": vector(hidden),
            "ffn_gate": matrix(FFN, hidden),
            "ffn_up": matrix(FFN, hidden),
            "ffn_down": matrix(hidden, FFN),
        }
        out |= {f"blk.{i}.{name}.weight": value for name, value in parts.items()}
    return out


def write_draft(
    folder: Path,
    kind: str,
    target: ModelConfig,
    layers: tuple[int, ...],
    *,
    seed: int = 0,
    sliding: bool = True,
    drop: tuple[str, ...] = (),
    extra: tuple[str, ...] = (),
    fmt: BlockFormat = F32,
    words: int = 0,
    **changes: object,
) -> Path:
    """A draft file of a kind; `drop` and `extra` change its tensors, `changes` replace keys (with `__` for the dot)."""
    tensors = draft_tensors(target.hidden, len(layers), seed) | {name: np.ones(4, np.float32) for name in extra}
    for name in drop:
        del tensors[name]
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    if kind == "safetensors":
        return write_published(folder, target, layers, tensors, sliding, changed)
    sizes = {
        "block_count": LAYERS,
        "embedding_length": target.hidden,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": BASE,
    }
    if sliding:
        sizes |= {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": np.array(SLIDING)}
    keys: dict[str, object] = {"general.architecture": kind}
    if kind == "dflash":  # layers by their input, the mask among the tokenizer's keys
        sizes |= {"block_size": BLOCK, "target_layers": np.array(layers, np.int32) + 1}
        keys["tokenizer.ggml.mask_token_id"] = MASK
        named = {"hidden_norm.weight": "enc.output_norm.weight"}
    else:
        sizes |= {
            "dflash.block_size": BLOCK,
            "dflash.n_target_layers": len(layers),
            "dflash.mask_token_id": MASK,
            "dflash.target_layer_ids": np.array(layers, np.int32),
        }
        mark = "dflash_" if kind == "dflash-draft" else "dflash."
        named = {name: mark + name for name in ("fc.weight", "hidden_norm.weight")}
    if words:
        keys["tokenizer.ggml.tokens"] = [f"word{i}" for i in range(words)]
    keys |= {f"{kind}.{name}": value for name, value in (sizes | changed).items() if value is not None}
    writer = GGUFWriter(folder / f"{kind}.gguf", keys)
    for name, value in tensors.items():
        stored = F32 if value.ndim == 1 else fmt
        writer.add(named.get(name, name), value.shape, stored, stored.encode(value))
    return writer.write()


def write_published(
    folder: Path, target: ModelConfig, layers: tuple[int, ...], tensors: dict, sliding: bool, changed: dict
) -> Path:
    """A checkpoint: .safetensors and config.json."""
    config = {
        "hidden_size": target.hidden,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-6,
        "rope_theta": BASE,
        "rope_scaling": None,
        "vocab_size": target.vocab,
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(layers)},
        "layer_types": [f"{'sliding' if slides and sliding else 'full'}_attention" for slides in SLIDING],
        "sliding_window": WINDOW if sliding else None,
    }
    named = {}
    for name, value in tensors.items():
        block, _, rest = name.partition(".")
        if block == "blk":
            number, part, _ = rest.split(".")
            name = f"layers.{number}.{PUBLISHED_PARTS[part]}.weight"
        named["norm.weight" if name == "output_norm.weight" else name] = value
    (folder / "config.json").write_text(json.dumps(config | changed))
    save_file(named, folder / "model.safetensors")
    return folder / "model.safetensors"


def as_published(folder: Path, path: Path) -> Path:
    """The draft of a GGUF file of architecture dflash as a checkpoint with its matrices in float16."""
    with GGUFFile.open(path) as file:
        keys = {name.removeprefix("dflash."): value for name, value in file.metadata.items()}
        config = {PUBLISHED[name]: keys[name] for name in PUBLISHED if name in keys} | {
            "block_size": keys["block_size"],
            "dflash_config": {
                "mask_token_id": keys["tokenizer.ggml.mask_token_id"],
                "target_layer_ids": [int(one) - 1 for one in keys["target_layers"]],
            },
            "layer_types": [
                f"{'sliding' if slides else 'full'}_attention" for slides in keys["attention.sliding_window_pattern"]
            ],
        }
        named = {}
        for name in file.tensors:
            value = file.weight(name).dense()
            renamed = {"enc.output_norm.weight": "hidden_norm.weight", "output_norm.weight": "norm.weight"}.get(
                name, name
            )
            if name.startswith("blk."):
                _, number, part, _ = name.split(".")
                renamed = f"layers.{number}.{PUBLISHED_PARTS[part]}.weight"
            named[renamed] = value if value.ndim == 1 else value.astype(np.float16)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(named, folder / "model.safetensors")
    return folder / "model.safetensors"
