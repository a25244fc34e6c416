"""What attention in eight bits changes of what the embedded drafter keeps of prompts long enough for it.

    python experiments/eight_bit/kept_long.py --out results        # on the CPU, a quarter of an hour

Prompts of TOKENS tokens, of which `tail` and `top_chunks` keep a tenth: by the drafter in BF16 (float32 on the CPU),
with its attention alone in eight bits, and with its products in int8 too. A row of ``eight_bit_kept.jsonl`` is one
task: the share of examples whose evidence was kept whole, with the interval of the difference to BF16 over examples;
the share of kept tokens that both keep, and Spearman's correlation of the scores, mean and least.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from sp.bench.record import append, make_record
from sp.errors import ConfigError
from sp.evals import TASKS
from sp.evals.metrics import Evidence, caught
from sp.evals.statistics import paired_difference
from sp.ops.attention.byte_attention.attend import BYTE_QUERIES
from sp.quant import Math
from sp.session import Pipeline, RunOptions

TASK_NAMES = ("fact", "nolima", "updates", "multi_session", "code", "needle")
TOKENS, EXAMPLES, KEEP = 4096, 20, 0.1
BF16, ATTENTION, ALL = "bf16", "attention", "attention and products"


def drafters() -> dict[str, Pipeline]:
    """Pairs that differ in what their drafter is made in."""
    found = {BF16: Pipeline.open(device="cpu"), ATTENTION: Pipeline.open(device="cpu")}
    model = found[ATTENTION].drafter.model
    model.arithmetic = replace(model.arithmetic, attention=Math.INT8)
    return found | {ALL: Pipeline.open(device="cpu", drafter_math="int8")}


def metrics_of(rows: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Of the examples of one task."""
    found: dict[str, Any] = {"n": len(rows)}
    for way in rows[0]:
        complete = [float(row[way]["complete"]) for row in rows]
        found[f"{way}: evidence"] = float(np.mean(complete))
        if way == BF16:
            continue
        found[f"{way}: difference"] = paired_difference(complete, [float(row[BF16]["complete"]) for row in rows])
        pairs = [(row[BF16], row[way]) for row in rows]
        overlap = [float((one["kept"] & other["kept"]).sum() / one["kept"].sum()) for one, other in pairs]
        alike = [float(spearmanr(one["scores"], other["scores"]).statistic) for one, other in pairs]
        for name, values in (("overlap", overlap), ("spearman", alike)):
            found[f"{way}: {name}"] = {"mean": float(np.mean(values)), "least": float(np.min(values))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="append the rows below this folder")
    parser.add_argument("-n", type=int, default=EXAMPLES, help="examples a task")
    parser.add_argument("--tasks", default=",".join(TASK_NAMES))
    asked, pairs = parser.parse_args(), drafters()
    options = RunOptions(keep_ratio=KEEP, scorer="tail", compress="always")
    one = pairs[BF16]

    def count(text: str) -> int:
        return len(one.target.tokenizer.encode(text).ids)

    for name in asked.tasks.split(","):
        task, began, rows = TASKS.build(name), time.perf_counter(), list[dict[str, dict[str, Any]]]()
        for index in range(asked.n):
            example, found = task.example(index, TOKENS, count), dict[str, dict[str, Any]]()
            for way, pair in pairs.items():
                prompt = pair.tokenise(example.prompt(pair.target.template))
                if len(prompt) < BYTE_QUERIES:
                    raise ConfigError(f"{example.id} has {len(prompt)} tokens: too few for attention in eight bits")
                scores, chosen = pair.select(pair.score(prompt, options), prompt, options)
                seen = caught(chosen, Evidence.of(prompt, example.answers))
                assert seen is not None, f"{example.id} has no evidence"
                found[way] = {"scores": scores, "kept": chosen.kept, "complete": seen.complete}
            rows.append(found)
        metrics = metrics_of(rows)
        print(name, metrics, f"{time.perf_counter() - began:.0f} s", flush=True)
        if asked.out is not None:
            config = {"task": name, "tokens": TOKENS, "drafter": "drafter.gguf", "n": asked.n, "keep_ratio": KEEP}
            append(make_record("eight_bit_kept", config | {"scorer": "tail"}, metrics, [], [], device="cpu"), asked.out)


if __name__ == "__main__":
    main()
