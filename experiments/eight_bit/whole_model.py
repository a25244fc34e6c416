"""What rounding to eight bits costs a whole model: the embedded target, all of its products rounded, on the CPU.

    python experiments/eight_bit/whole_model.py --out results        # on the CPU, half a minute

The model is small (10 layers, 512 wide, Q4_K and Q6_K) but trained; a large model may have other outliers. It reads the
first TOKENS tokens of the embedded document. Against products in float32:

`kl`       of the distributions of the next token, mean over all positions, in nats
`logits`   relative error (root mean square) of the logits
`stream`   the same of the residual stream after each layer
`largest`  of the inputs of all products the largest, over the root mean square of its token

``eight_bit_model.jsonl`` gets one row, with the metrics of all ways. The table is printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from errors import relative
from roundings import ways

import sp.ops.matmul.project  # noqa: F401
from sp.bench.record import append, make_record
from sp.models import Model, load_model
from sp.models.passes.forward import prefill
from sp.quant import Q4_K, Weight
from sp.session.load import embedded, load
from sp.studies.sample import sample

TOKENS = 512
project = sys.modules["sp.ops.matmul.project"]
linear = project.linear


class Rounded:
    """`linear` with inputs and weights rounded one way; None: as it is."""

    def __init__(self, name: str | None) -> None:
        self.name, self.weights, self.largest = name, dict[str, np.ndarray](), 0.0

    def __call__(self, x: np.ndarray, w: Weight) -> np.ndarray:
        rms = np.sqrt(np.mean(x**2, axis=1, keepdims=True))
        self.largest = max(self.largest, float((np.abs(x) / rms).max()))
        if self.name is None:
            return linear(x, w)
        way = ways(w.format)[self.name]
        if w.name not in self.weights:
            self.weights[w.name] = way.weight(w)
        return way.product(x, w, self.weights[w.name]).astype(np.float32)


def run(target: Model, ids: np.ndarray, name: str | None) -> tuple[np.ndarray, list[np.ndarray], float]:
    """Logits of all positions, the stream after each layer, and the largest input."""
    stream: list[np.ndarray] = []
    with patch.object(project, "linear", Rounded(name)) as rounded:
        cache = target.new_cache(len(ids))
        prefill(
            target, ids, np.arange(len(ids)), cache, chunk=len(ids), rows=len(ids),
            after=lambda layer, x: stream.append(x.copy()),
        )  # fmt: skip
        return target.head(stream[-1]).astype(np.float64), stream, rounded.largest


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def compared(target: Model, ids: np.ndarray) -> tuple[dict[str, dict[str, Any]], float]:
    """Metrics by way, and the largest input."""
    want, layers, largest = run(target, ids, None)
    log_p, found = log_softmax(want), {}
    for name in ways(Q4_K):
        logits, stream, _ = run(target, ids, name)
        kl = (np.exp(log_p) * (log_p - log_softmax(logits))).sum(axis=1)
        found[name] = {
            "kl": float(kl.mean()),
            "logits": relative(logits - want, want),
            "stream": [relative(a - b, b) for a, b in zip(stream, layers, strict=True)],
        }
    return found, largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="append the rows below this folder")
    out = parser.parse_args().out
    ids = np.asarray(load(embedded("target"), device="cpu").tokenizer.encode(sample()[0]).ids[:TOKENS])
    target = load_model(embedded("target"), decode_budget=0)  # weights stay packed
    print("| way | KL (nats) | logits (%) | stream after the first, the last layer (%) |\n|---|---:|---:|---:|")
    found, largest = compared(target, ids)
    for name, metrics in found.items():
        first, last = metrics["stream"][0], metrics["stream"][-1]
        shown = f"{100 * metrics['logits']:.2f} | {100 * first:.2f}, {100 * last:.2f}"
        print(f"| {name} | {metrics['kl']:.2e} | {shown} |")
    print(f"\nlargest input over the root mean square of its token: {largest:.0f}")
    if out is not None:
        config = {"model": "target.gguf", "prompt_tokens": TOKENS}
        append(make_record("eight_bit_model", config, {"largest": largest, **found}, [], [], device="cpu"), out)


if __name__ == "__main__":
    main()
