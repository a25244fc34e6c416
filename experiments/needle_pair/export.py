"""Quantise trained weights with the project's own encoders and write the GGUF files.

``python export.py DATA WEIGHTS_DIR OUT_DIR`` reads ``DATA/{drafter,target}.json`` (tokenizers) and
``WEIGHTS_DIR/{drafter,target}.safetensors``; ``--untrained`` writes random weights of the same shapes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from layers import GGUFModule
from models import build, formats
from safetensors.torch import load_file
from tokenizer import CHAT_TEMPLATE, SPECIALS, VOCABULARY
from tokenizers import Tokenizer

from sp.gguf.reader import GGUFFile
from sp.gguf.writer import GGUFWriter

CONTEXT = 163_840


def vocabulary_metadata(path: Path, role: str) -> dict:
    tok = Tokenizer.from_file(str(path))
    import json

    merges = json.loads(path.read_text())["model"]["merges"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    tokens = [tok.id_to_token(i) for i in range(tok.get_vocab_size())]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": VOCABULARY[role][0],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if t in SPECIALS else 1 for t in tokens], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def shape_metadata(model: GGUFModule, role: str) -> dict:
    c = model.config
    arch = "qwen3" if role == "drafter" else "qwen35"
    meta: dict = {
        "general.architecture": arch,
        "general.name": f"needle-pair-{role}",
        "general.license": "mit",
        "general.file_type": 7 if role == "drafter" else 15,
    }
    keys = {
        "block_count": c.layers, "context_length": CONTEXT, "embedding_length": c.hidden, "feed_forward_length": c.ffn,
        "attention.head_count": c.heads, "attention.head_count_kv": c.kv_heads, "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": float(c.base),
    }  # fmt: skip
    if role == "target":
        third = c.rope_dim // 2
        sections = [third - 2 * (third // 3), third // 3, third // 3, 0]
        keys |= {
            "rope.dimension_count": c.rope_dim, "rope.dimension_sections": np.array(sections, np.int32),
            "full_attention_interval": c.interval, "ssm.conv_kernel": c.conv, "ssm.state_size": c.state,
            "ssm.group_count": c.key_heads, "ssm.time_step_rank": c.value_heads, "ssm.inner_size": c.inner,
        }  # fmt: skip
    return meta | {f"{arch}.{k}": v for k, v in keys.items()}


def write(model: GGUFModule, role: str, data: Path, out: Path) -> Path:
    path = out / f"{role}.gguf"
    writer = GGUFWriter(path, shape_metadata(model, role) | vocabulary_metadata(data / f"{role}.json", role))
    packed = formats(model, role)
    for name, value in model.named().items():
        v, fmt = value.detach().float(), packed[name]
        if name.endswith("ssm_a_log"):
            name, v = name.removesuffix("_log"), -v.exp()
        writer.add(name, tuple(v.shape), fmt, fmt.encode(np.ascontiguousarray(v.numpy())))
    writer.write()
    return path


def load_weights(model: GGUFModule, path: Path) -> GGUFModule:
    """Put the weights of a training checkpoint into the PyTorch model."""
    with torch.no_grad():
        for name, value in load_file(path).items():
            model.p[name.replace(".", "/")].copy_(value.float())
    return model


def load_quantised(model: GGUFModule, path: Path) -> GGUFModule:
    """Put the decoded weights of a GGUF file back into the PyTorch model."""
    with GGUFFile.open(path) as file, torch.no_grad():
        for name, p in model.named().items():
            if name.endswith("ssm_a_log"):
                p.copy_(torch.from_numpy(np.log(-file.weight(name.removesuffix("_log")).dense())))
            else:
                p.copy_(torch.from_numpy(np.array(file.weight(name).dense())))
    return model


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("data", type=Path)
    a.add_argument("weights", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--untrained", action="store_true")
    a.add_argument("--role", choices=("drafter", "target"))
    args = a.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for role in [args.role] if args.role else ("drafter", "target"):
        torch.manual_seed(0)
        model = build(role, torch.float32)
        if not args.untrained:
            load_weights(model, args.weights / f"{role}.safetensors")
        path = write(model, role, args.data, args.out)
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
