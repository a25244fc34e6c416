"""The page's tables of sparse attention: one layer, a drafter's scoring, and the target reading few blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp.studies.tables.lookup import Record, age, find, markdown, metric, percent
from sp.studies.tables.speed_table import ATTENTION, OURS

TOKENS = 131072
PATHS = ("sm_90a", "portable")
FIRST = {"variant": "FlashPrefill", "share": "head", "mean_correction": False}
SECOND = {"variant": "FlashPrefill", "share": "group", "alpha": 0.1}
LAYERS: Mapping[str, Mapping[str, Any]] = {
    "alpha 0.1": FIRST | {"alpha": 0.1, "head_dim": 128},
    "alpha 0.85": FIRST | {"alpha": 0.85, "head_dim": 128},
    "alpha 0.1, version 2 without its correction": SECOND | {"mean_correction": False, "head_dim": 128},
    "alpha 0.1, version 2": SECOND | {"mean_correction": True, "head_dim": 128},
    "strongest 5 %": {"variant": "TopDensity", "density": 0.05, "head_dim": 128},
    "alpha 0.1, d 256, 24/4 heads": FIRST | {"alpha": 0.1, "head_dim": 256},
}
PROMPTS = (8192, 32768, 65536, 131072, 262144)
DRAFTER = {"model": "qwen3-0.6b bf16 (random)", "path": "sm_90a", "density": 0.05, "tokens": "random", "math": "bf16"}
TARGET_TOKENS = 32768
NO_LAYERS = "No record of a sparse layer; `tests/benchmarks/test_bench_flashprefill.py` makes such records."
NO_DRAFTERS = "No record of a drafter's speed; `sp bench drafter --record results` makes such records."


def sparse_layers(records: Sequence[Record]) -> str:
    """One layer of 128K tokens, choice and attention together; below it the libraries' dense attention of that size.

    Examples
    --------
    >>> sparse_layers([]) == NO_LAYERS
    True
    """
    rows = []
    for text, config in LAYERS.items():
        found = [find(records, "flashprefill_layer", **config, tokens=TOKENS, path=path) for path in PATHS]
        if found[0] is None:
            continue
        density, rates = percent(found[0]["metrics"]["density"]), [metric(r, "tflops_live", ".0f") for r in found]
        rows.append([text, density, *(metric(r, "ms", ".1f") for r in found), " / ".join(r for r in rates if r)])
    if not rows:
        return NO_LAYERS
    heads = ["one layer, 128K tokens", "blocks read", "sm_90a (ms)", "portable (ms)", "TFLOP/s on blocks read"]
    return "\n\n".join([markdown(heads, rows), *_dense(records)])


def drafters(records: Sequence[Record]) -> str:
    """Scoring a prompt with random weights, and below it the target reading few blocks.

    Examples
    --------
    >>> drafters([]) == NO_DRAFTERS
    True
    """
    rows = []
    for tokens in PROMPTS:
        record = find(records, "drafter", **DRAFTER, prompt_tokens=tokens)
        if record is None:
            continue
        times = [metric(record, "score_s", ".3f"), f"{record['metrics']['limit_s']:.3f}"]
        read, peak = percent(record["metrics"]["density"]), f"{record['metrics']['peak_bytes'] / 1e9:.2f}"
        rows.append([f"score {tokens:,} tokens", read, *times, peak])
    if not rows:
        return NO_DRAFTERS
    heads = ["work", "blocks read", "seconds", "limit (s)", "peak memory (GB)"]
    return "\n\n".join([markdown(heads, rows), *_target(records)])


def _dense(records: Sequence[Record]) -> list[str]:
    said = []
    for head_dim in (128, 256):
        keys = {"head_dim": head_dim, "tokens": TOKENS}
        found = {name: find(records, "attention", **keys, path=path) for path, name in ATTENTION.items()}
        rates = [f"{metric(record, 'tflops', '.0f')} in {name}" for name, record in found.items() if record]
        said += [f"d {head_dim} {' and '.join(rates)}"] if rates else []
    return [f"Dense attention of 128K tokens reaches, in TFLOP/s: {'; '.join(said)}."] if said else []


def _target(records: Sequence[Record]) -> list[str]:
    keys = OURS | {"prompt_tokens": TARGET_TOKENS, "path": "sm_90a"}
    sparse, dense = (find(records, "prefill", **keys | {"asked_density": share}) for share in (0.05, None))
    if sparse is None or dense is None:
        return []
    few, all_of_them = (f"{record['metrics']['tok_s']:,.0f} tok/s" for record in (sparse, dense))
    return [
        f"The 27B target (Q4_K_M mix, random weights) reads 32K tokens at {few} with "
        f"{percent(sparse['metrics']['density'])} of the blocks{age(sparse)}, and at {all_of_them} with all of them"
        f"{age(dense)}; its attention is a small part of that work."
    ]
