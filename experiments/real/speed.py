"""Seconds that scorers take of a real drafter: the whole stage, on real text, and a calibration; a record each.

    python experiments/real/speed.py DRAFTER.gguf TEXT... --record results/nvidia-h200

`TEXT` are files that are joined and repeated to each length. The question comes last, as in `sp run`; tokenising is no
part of the times.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sp.bench.record import append, make_record, running
from sp.bench.timing import free_pool, kernel_times, pool_bytes
from sp.kernels.launch import launched_sources, reset_launched
from sp.prompt import Prompt
from sp.session import Pipeline, RunOptions
from sp.session.request import score_request

QUESTION = "Which of the settings has to be changed before two of them can be used together?"
READINGS = {
    "attention=flashprefill density=0.05": "sparse=density:0.05",
    "attention=flashprefill alpha=0.1": "sparse=alpha:0.1",
    "dense": "",
}
"""How the drafter attends: as records name it, which keeps their keys, and as a scorer's option."""
HOW = ("auto", "calibrated", "tail", "tail[queries=question]", "bm25")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "auto"])
    parser.add_argument("--scorers", nargs="+", default=HOW)
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=list(READINGS))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    text = "\n\n".join(path.read_text("utf8", "replace") for path in args.texts)
    for precision in args.precisions:
        for scorer in args.scorers:
            options = [RunOptions(scorer=scorer)]
            pair = Pipeline.open(args.drafter, args.drafter, device="cuda", drafter_precision=precision,
                                 scorers=[one.scorer for one in options])  # fmt: skip
            loaded = pair.drafter
            whole = loaded.tokenizer.encode(text)
            for tokens in args.tokens:
                need = int(len(text) * tokens / len(whole.ids)) - 600
                document = (text * (1 + need // len(text)))[:need]
                drafted = Prompt.from_document(document, QUESTION, loaded.template).tokenise(loaded.tokenizer)
                for attention in args.readings:
                    sparse = READINGS[attention]
                    if "bm25" in scorer and sparse:
                        continue
                    name = scorer.partition("[")[0]
                    options_text = " ".join(filter(None, (scorer.partition("[")[2].rstrip("]"), sparse)))
                    one = RunOptions(scorer=f"{name}[{options_text}]" if options_text else name).scorer
                    row = timed(loaded, drafted, one, args.repeats)
                    config: dict[str, Any] = {
                        "model": "smollm2-135m", "prompt_tokens": tokens, "tokens": "text", "scorer": scorer,
                        "attention": attention, "depth": loaded.model.depth,
                        **running("sm_90a", loaded.model.arithmetic),
                    }  # fmt: skip
                    print(precision, scorer, tokens, attention, row["metrics"], flush=True)
                    if args.record:
                        append(make_record("real_drafter", config, **row), args.record)


def timed(loaded: Any, drafted: Any, scorer: Any, repeats: int) -> dict[str, Any]:
    """Metrics and samples of a scoring."""
    model = loaded.model
    reset_launched()
    found = scorer.score(score_request(loaded, drafted))
    free_pool(model)
    samples = []
    for _ in range(repeats):
        request = score_request(loaded, drafted)
        start = time.perf_counter()
        found = scorer.score(request)
        samples.append(time.perf_counter() - start)
    density = float(np.mean(found.densities)) if found.densities else 1.0
    kernels = kernel_times(lambda: scorer.score(score_request(loaded, drafted)), hold_ms=60.0) if scorer.drafts else []
    metrics = {
        "score_s": round(median(samples), 5), "density": round(density, 4), "peak_bytes": pool_bytes(model),
        "kernels_ms": round(sum(item.ms for item in kernels), 2), "tokens_read": len(drafted),
    }  # fmt: skip
    return {"metrics": metrics, "samples": samples, "sources": launched_sources()}


if __name__ == "__main__":
    main()
