"""The draft as a GGUF file of architecture ``dflash``: ``python draft_export.py WEIGHTS.pt OUT.gguf [NAME]``.

Q8_0 and F32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from draft import Draft, DraftConfig
from files import CONTEXT
from layers import EPS

from sp.gguf.reader import GGUFFile
from sp.gguf.writer import GGUFWriter
from sp.quant import F32, Q8_0


def metadata(c: DraftConfig, name: str) -> dict:
    """Keys as llama.cpp names them; its target layers are counted by their input."""
    keys = {
        "block_count": c.layers, "context_length": CONTEXT, "embedding_length": c.hidden, "feed_forward_length": c.ffn,
        "attention.head_count": c.heads, "attention.head_count_kv": c.kv_heads, "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim, "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": float(c.base),
        "block_size": c.block, "target_layers": np.array(c.target_layers, np.int32) + 1,
    }  # fmt: skip
    return {
        "general.architecture": "dflash",
        "general.name": name,
        "general.license": "mit",
        "general.file_type": 7,
        "tokenizer.ggml.mask_token_id": c.mask_id,
    } | {f"dflash.{k}": v for k, v in keys.items()}


def read_draft(path: Path) -> Draft:
    """A draft in float32 from a GGUF file or from what `fit_draft.save` wrote."""
    if path.suffix == ".gguf":
        with GGUFFile.open(path) as file:
            m = {k.removeprefix("dflash."): v for k, v in file.metadata.items()}
        config = DraftConfig(
            layers=m["block_count"], ffn=m["feed_forward_length"], heads=m["attention.head_count"],
            kv_heads=m["attention.head_count_kv"], head_dim=m["attention.key_length"], base=m["rope.freq_base"],
            block=m["block_size"], mask_id=m["tokenizer.ggml.mask_token_id"],
            target_layers=tuple(int(x) - 1 for x in m["target_layers"]),
        )  # fmt: skip
    else:
        config = DraftConfig(**torch.load(path, map_location="cpu", weights_only=False)["config"])
    return load_draft_weights(Draft(config, torch.float32), path)


def load_draft_weights(draft: Draft, path: Path) -> Draft:
    """Put the weights of a checkpoint or of a GGUF file into a draft of the same shape."""
    with torch.no_grad():
        if path.suffix == ".gguf":
            with GGUFFile.open(path) as file:
                for name, p in draft.named().items():
                    p.copy_(torch.from_numpy(np.array(file.weight(name).dense())))
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=False)["tensors"]
            for name, p in draft.named().items():
                p.copy_(tensors[name].float())
    return draft


def write(draft: Draft, path: Path, name: str = "instrument-draft") -> Path:
    writer = GGUFWriter(path, metadata(draft.config, name))
    for name, value in draft.named().items():
        v = value.detach().float().cpu()
        fmt = Q8_0 if v.ndim == 2 else F32
        writer.add(name, tuple(v.shape), fmt, fmt.encode(np.ascontiguousarray(v.numpy())))
    writer.write()
    return path


if __name__ == "__main__":
    out = write(read_draft(Path(sys.argv[1])), Path(sys.argv[2]), *sys.argv[3:4])
    print(out, out.stat().st_size)
