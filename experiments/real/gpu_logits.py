"""How far a real model on the GPU is from float32 on the CPU: KL, best tokens and loss, by products, path and cache.

    python experiments/real/gpu_logits.py smollm2-135m.gguf gemma-3-270m.gguf --out gpu_logits.json

1,000 tokens of English, the logits of every one. The reference reads the same file on the CPU, with an f32 cache.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from sp.kernels import forced_path, import_cupy
from sp.models.run.layer_major import stream_layer_major
from sp.session import load

TOKENS = 1000
CASES = [(precision, path, kv) for precision, kvs in (("bf16", ("f16", "q4_0")), ("int8", ("f16",)))
         for path in ("sm_90a", "portable") for kv in kvs]  # fmt: skip


def log_probs(path: Path, ids: np.ndarray, device: str, kv: str, precision: str = "bf16") -> Any:
    """Logarithms of probabilities of what follows each token: float64 (n, vocab)."""
    model = (
        load(path, device=device, precision=precision).model if device == "cuda" else load(path, device=device).model
    )
    stream = stream_layer_major(model, ids, np.arange(len(ids)), model.new_cache(len(ids), kv))
    logits = import_cupy().asarray(model.head(stream), np.float64)  # softmax of so large a vocabulary takes a CPU long
    logits -= logits.max(axis=1, keepdims=True)
    logits -= import_cupy().log(import_cupy().exp(logits).sum(axis=1, keepdims=True))
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "sp/assets/sample.txt")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    for path in args.models:
        text = args.text.read_text("utf-8")
        ids = load(path, device="cpu").tokenizer.encode(text, framed=True).ids[:TOKENS]
        want, places = log_probs(path, ids, "cpu", "f32"), (np.arange(len(ids) - 1), ids[1:])
        for precision, kernels, kv in CASES:
            with forced_path(kernels):
                got = log_probs(path, ids, "cuda", kv, precision)
            kl = (import_cupy().exp(want) * (want - got)).sum(axis=1)
            row = {
                "kl": kl.mean(), "kl_max": kl.max(), "top1": (want.argmax(1) == got.argmax(1)).mean(),
                "loss": -got[places].mean(), "loss_f32": -want[places].mean(),
            }  # fmt: skip
            found[f"{path.stem} {precision} {kernels} {kv}"] = row = {name: float(value) for name, value in row.items()}
            print(f"{path.stem:14} {precision} {kernels:8} {kv:4} " + " ".join(f"{k} {v:.5f}" for k, v in row.items()))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
