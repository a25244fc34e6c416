"""Write the trained weights as GGUF files: ``python files.py DATA WEIGHTS OUT [--role ROLE] [--type q8_0]``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import FILE_TYPES, Reader, build
from tokenizer import CHAT_TEMPLATE, SPECIALS
from tokenizers import Tokenizer
from weights import load_weights

from sp.evals.trained_for import KEY
from sp.gguf.writer import GGUFWriter
from sp.models.file.file_type import tensor_format

TRAINED_FOR = (
    "no head of it was supervised. It was trained with next-token loss alone, on stories of the kinds that the story "
    "tasks tell and on the facts of their closed world, in other phrases, with other names and among other text; which "
    "of its heads retrieve was found afterwards."
)
"""What `sp` tells under tables in which scorers are ranked by this drafter."""
FILE_TYPE_CODES = {"q8_0": 7, "q4_k_m": 15}
"""`general.file_type`, as llama.cpp numbers it."""

CONTEXT = 163_840


def vocabulary_metadata(path: Path) -> dict[str, Any]:
    """The tokenizer, as GGUF files describe it."""
    tok = Tokenizer.from_file(str(path))
    merges = json.loads(path.read_text())["model"]["merges"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    tokens = [tok.id_to_token(i) for i in range(tok.get_vocab_size())]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if t in SPECIALS else 1 for t in tokens], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def shape_metadata(model: Reader, role: str) -> dict[str, Any]:
    """Architecture and sizes."""
    c = model.config
    keys = {
        "block_count": c.layers, "context_length": CONTEXT, "embedding_length": c.hidden, "feed_forward_length": c.ffn,
        "attention.head_count": c.heads, "attention.head_count_kv": c.kv_heads, "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": float(c.base),
    }  # fmt: skip
    named = {"general.architecture": "qwen3", "general.name": f"instrument-{role}", "general.license": "mit"}
    return named | {f"qwen3.{key}": value for key, value in keys.items()}


def write(role: str, data: Path, weights: Path, out: Path, file_type: str) -> Path:
    """The file of a role, matrices in the formats of a file type."""
    model = load_weights(build(role, torch.float32), weights)
    metadata = shape_metadata(model, role) | vocabulary_metadata(data / "vocabulary.json")
    metadata["general.file_type"] = FILE_TYPE_CODES[file_type]
    path, named = out / f"{role}.gguf", model.named()
    tied = "output.weight" not in named
    writer = GGUFWriter(path, metadata | {KEY: TRAINED_FOR})
    for name, value in named.items():
        v = value.detach().float()
        fmt = tensor_format(file_type, name, tuple(v.shape), layers=model.config.layers, tied=tied)
        writer.add(name, tuple(v.shape), fmt, fmt.encode(np.ascontiguousarray(v.numpy())))
    writer.write()
    return path


def main() -> None:
    """Write one file or both."""
    a = argparse.ArgumentParser()
    a.add_argument("data", type=Path)
    a.add_argument("weights", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--role", choices=("drafter", "target"))
    a.add_argument("--type", help="of the file; q8_0 loses less where training goes on from it")
    args = a.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for role in [args.role] if args.role else ("drafter", "target"):
        path = write(role, args.data, args.weights / f"{role}.safetensors", args.out, args.type or FILE_TYPES[role])
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
