"""What eight bits cost a model of 27B shapes with random weights: each arithmetic against BF16, on the GPU.

    python experiments/eight_bit/large_model.py --record results     # half a minute on an H200

It reads TOKENS random tokens, so many that products are made in what is asked for, and compares what the head says of
the last ROWS of them:

`kl`      of the distributions of the next token, mean over the rows, in nats
`logits`  relative error (root mean square) of the logits
`top`     share of rows whose likeliest token is the same

BF16 itself was 9e-5 nats from float32 there (48 tokens). ``eight_bit_large.jsonl`` gets a row for each arithmetic of
each path.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from sp.bench.record import append, make_record
from sp.kernels import import_cupy
from sp.kernels.path import forced_path
from sp.models.arithmetic import with_math
from sp.models.model import Model
from sp.models.passes.forward import prefill
from sp.models.synthetic.random_store import random_model
from sp.quant import Math

TOKENS, ROWS = 2048, 264
WAYS = {"sm_90a": (Math.BF16, Math.INT8, Math.FP8), "portable": (Math.BF16, Math.INT8)}


def logits(model: Model, ids: np.ndarray) -> np.ndarray:
    """float64 (ROWS, vocab) of the last tokens."""
    last = []

    def after(layer: int, x: object) -> None:
        if layer == model.config.layers - 1:
            last.append(x[-ROWS:].copy())  # type: ignore[index]

    cache = model.new_cache(len(ids))
    prefill(model, ids, np.arange(len(ids)), cache, after=after, rows=ROWS)
    del cache
    parts = [model.head(last[0][i : i + 8]).get() for i in range(0, ROWS, 8)]
    found: np.ndarray = np.concatenate(parts).astype(np.float64)
    return found


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def main() -> None:
    """Print a line for each arithmetic of each path, and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3.6-27b")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    model = random_model(options.shape, "q4_k_m")
    plain, ids = model.trunk, np.random.default_rng(0).integers(0, model.config.vocab, TOKENS)
    exact = None
    for path, ways in WAYS.items():
        for math in ways:
            with forced_path(path):
                model.trunk = with_math(plain, math, "cuda")[0]
                found = logits(model, ids)
            import_cupy().get_default_memory_pool().free_all_blocks()
            if exact is None:
                exact = found
            a, b = log_softmax(exact), log_softmax(found)
            metrics = {
                "kl": float((np.exp(a) * (a - b)).sum(axis=-1).mean()),
                "logits": float(np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())),
                "top": float((found.argmax(axis=-1) == exact.argmax(axis=-1)).mean()),
            }
            told = "  ".join(f"{name} {value:.3g}" for name, value in metrics.items())
            print(f"{path:9} {math:5} {told}", flush=True)
            if options.record:
                config = {"shape": options.shape, "type": "q4_k_m", "tokens": TOKENS, "rows": ROWS}
                config |= {"path": path, "math": str(math)}
                append(make_record("eight_bit_large", config, metrics, []), options.record)


if __name__ == "__main__":
    main()
