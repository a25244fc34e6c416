"""What eight bits cost a model of 27B shapes with random weights: each arithmetic against BF16, on the GPU.

    python experiments/eight_bit/large_model.py --record results     # three quarters of a minute on an H200

It reads TOKENS random tokens, so many that products are made in what is asked for, and compares what the head says of
the last ROWS of them:

`kl`      of the distributions of the next token, mean over the rows, in nats
`logits`  relative error (root mean square) of the logits
`top`     share of rows whose likeliest token is the same

Beside the arithmetics as `--math` has them: int8 with the first n layers left in BF16, by n of LEFT. How many `--math`
leaves, `sp.models.arithmetic.FIRST_LAYERS`, rests on these. BF16 itself was 9e-5 nats from float32 there (48 tokens).
``eight_bit_large.jsonl`` gets a row for each; those by n have it as `left`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sp.bench.record import append, make_record
from sp.kernels import import_cupy
from sp.kernels.path import forced_path
from sp.models.arithmetic import is_eligible, with_math
from sp.models.model import Model
from sp.models.passes.forward import prefill
from sp.models.synthetic.random_store import random_model
from sp.models.trunk import Trunk, mapped
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Math, Weight

TOKENS, ROWS = 2048, 264
WAYS = {"sm_90a": (Math.BF16, Math.INT8, Math.FP8), "portable": (Math.BF16, Math.INT8)}
LEFT = (0, 1, 2, 3, 4, 8)


def marked(trunk: Trunk, left: int) -> Trunk:
    """A trunk in BF16 with all matrices in int8 that can be, but those of the first `left` layers."""

    def mark(leaf: Any) -> Any:
        able = isinstance(leaf, Weight | PackedWeight) and is_eligible(leaf.name, leaf.shape, left)
        return replace(leaf, math=Math.INT8) if able else leaf

    return replace(trunk, blocks=mapped(trunk.blocks, mark))


def ways(plain: Trunk) -> Iterator[tuple[dict[str, Any], Trunk]]:
    """What records tell a way apart by, and the trunk marked for it; the first is what others are compared with."""
    for path, maths in WAYS.items():
        for math in maths:
            with forced_path(path):
                trunk = with_math(plain, math, "cuda")[0]
            yield {"path": path, "math": str(math)}, trunk
        for left in LEFT if path == "sm_90a" else ():
            yield {"path": path, "math": str(Math.INT8), "left": left}, marked(plain, left)


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


class Compared:
    """What others' logits lose against these."""

    def __init__(self, exact: np.ndarray) -> None:
        self.exact, self.log_p = exact, log_softmax(exact)
        self.p, self.top = np.exp(self.log_p), exact.argmax(axis=-1)

    def metrics(self, found: np.ndarray) -> dict[str, float]:
        """As told at the top, of logits (ROWS, vocab)."""
        return {
            "kl": float((self.p * (self.log_p - log_softmax(found))).sum(axis=-1).mean()),
            "logits": float(np.sqrt(np.square(found - self.exact).mean() / np.square(self.exact).mean())),
            "top": float((found.argmax(axis=-1) == self.top).mean()),
        }


def main() -> None:
    """Print a line for each way, and record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3.6-27b")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    model = random_model(options.shape, "q4_k_m")
    ids = np.random.default_rng(0).integers(0, model.config.vocab, TOKENS)
    compared = None
    for way, trunk in ways(model.trunk):
        model.trunk = trunk
        with forced_path(way["path"]):
            found = logits(model, ids)
        import_cupy().get_default_memory_pool().free_all_blocks()
        compared = compared or Compared(found)
        metrics = compared.metrics(found)
        told = "  ".join(f"{name} {value:.3g}" for name, value in metrics.items())
        left = f", {way['left']} layers left" if "left" in way else ""
        print(f"{way['path']:9} {way['math']}{left}  {told}", flush=True)
        if options.record:
            config = {"shape": options.shape, "type": "q4_k_m", "tokens": TOKENS, "rows": ROWS, **way}
            append(make_record("eight_bit_large", config, metrics, []), options.record)


if __name__ == "__main__":
    main()
