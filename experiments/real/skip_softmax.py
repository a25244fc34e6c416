"""What a prefill without tiles of little weight costs on real text: KL of logits from those of whole attention.

    python experiments/real/skip_softmax.py smollm2-135m alice.txt --tokens 6144 --every 8 --budgets 0.02 0.05 0.1
    python experiments/real/skip_softmax.py smollm2-135m alice.txt --tokens 32768 --every 32 --device cuda

A text's first tokens are read layer by layer, and every so many's logits are scored. Past its window a model reads with
YaRN, as a drafter does. A record has the share of tiles whose values were read, of all layers that may leave out some.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from kv_quality import judged

from sp.bench import record as bench
from sp.bench.record import file_facts, make_record
from sp.models import LayerAttention, Model, SparseAttention, stream_layer_major
from sp.models.layer.steps import dense_attention
from sp.ops.skip_softmax import SkipSoftmax
from sp.session import load


def stream(model: Model, ids: Any, every: int, attend: LayerAttention) -> Any:
    """The residual stream behind the last layer, of the scored rows."""
    cache = model.new_cache(len(ids), layers=1)
    return stream_layer_major(model, ids, np.arange(len(ids)), cache, attend=attend)[every - 1 :: every].copy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a known name, or a file")
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[6144])
    parser.add_argument("--every", type=int, default=8, help="which tokens' logits are scored")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of records")
    given = parser.parse_args()
    loaded = load(given.model, device=given.device, extrapolate=True)
    facts = {**file_facts(loaded.path), "engine": "sp", "every": given.every}
    for text, tokens in ((text, tokens) for text in given.text for tokens in given.tokens):
        ids = np.array(loaded.tokenizer.encode(text.read_text("utf-8"), framed=True).ids, np.int64)[: tokens + 1]
        if len(ids) <= tokens:
            raise SystemExit(f"{text} has {len(ids)} tokens, and {tokens + 1} are wanted")
        model, wanted = loaded.for_prompt(tokens).model, ids[given.every :: given.every]
        exact = stream(model, ids[:-1], given.every, dense_attention)
        for budget in given.budgets:
            start, attend = time.perf_counter(), SparseAttention(SkipSoftmax(budget))
            near = stream(model, ids[:-1], given.every, attend)
            densities = attend.densities()
            metrics = {**judged(model, exact, near, wanted), "read": float(np.mean(densities)), "densities": densities}
            metrics["seconds"] = time.perf_counter() - start
            config = {**facts, "text": text.name, "tokens": tokens, "budget": budget}
            bench.append(make_record("skip_softmax", config, metrics, [], device=given.device), given.out)
            told = {name: value for name, value in metrics.items() if name != "densities"}
            print(
                text.name, tokens, budget, " ".join(f"{name} {value:.5g}" for name, value in told.items()), flush=True
            )


if __name__ == "__main__":
    main()
