"""The page's tables of speed: whole models beside llama.cpp, and kernels beside libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sp.bench.llama_cpp import ENGINE, best_peer
from sp.studies.tables.lookup import LIBRARIES, Record, find, markdown, metric

MODEL = {"shape": "qwen3.6-27b", "type": "q4_k_m", "kv": "f16", "cards": 1}
OURS = MODEL | {"engine": "sp", "math": "bf16", "draft": None, "asked_density": None}
PROMPTS = (512, 8192, 32768, 131072)
PORTABLE = 8192
"""Tokens of the prefill that is also shown with the kernels for any card, and of other models."""
OTHERS = {
    "27B in the UD-Q4_K_XL mix": {"shape": "qwen3.6-27b", "type": "ud-q4_k_xl"},
    "Llama 3.1 70B": {"shape": "llama-3.1-70b", "type": "q4_k_m"},
}
"""Further models, of which one prefill and decoding are shown."""
NO_SPEED = "No record of a whole model's speed; `sp bench model --record results` makes such records."
NO_KERNELS = "No record of a kernel beside its library; the benchmarks below `tests/benchmarks` make such records."
PRODUCT = {"m": 8192, "n": 17408, "k": 5120}
MODES = {"graph": "graph replays", "eager": "single eager calls", "burst": "bursts of 50 calls"}
ATTENTION = {path: LIBRARIES[path] for path in ("cudnn", "flash-attention-2")}
"""Libraries whose dense attention was timed."""


def whole_models(records: Sequence[Record]) -> str:
    """Prefill, decoding and loading of the 27B shapes and `OTHERS`; llama.cpp at its best recorded setting.

    Examples
    --------
    >>> whole_models([]) == NO_SPEED
    True
    """
    peers = peers_of(records, MODEL)
    rows = []
    for tokens in PROMPTS:
        mine = find(records, "prefill", **OURS, prompt_tokens=tokens, path="sm_90a")
        best = best_peer(peers, tokens)
        rows.append([f"prefill {tokens:,} tokens (tok/s)", metric(mine, "tok_s", ",.0f"), *of_peer(best, ",.0f")])
    mine = find(records, "prefill", **OURS, prompt_tokens=PORTABLE, path="portable")
    rows.append([f"prefill {PORTABLE:,} tokens, portable path forced (tok/s)", metric(mine, "tok_s", ",.0f"), "", ""])
    mine = find(records, "decode", **OURS, context=0, path="sm_90a")
    best = best_decoding(peers)
    rows.append(["decode, 64 tokens at empty context (tok/s)", metric(mine, "tok_s", ".1f"), *of_peer(best, ".1f")])
    for name, which in OTHERS.items():
        mine = find(records, "prefill", **OURS | which, prompt_tokens=PORTABLE, path="sm_90a")
        rows.append([f"{name}: prefill {PORTABLE:,} tokens (tok/s)", metric(mine, "tok_s", ",.0f"), "", ""])
        mine = find(records, "decode", **OURS | which, context=0, path="sm_90a")
        rows.append([f"{name}: decode (tok/s)", metric(mine, "tok_s", ".1f"), "", ""])
    loaded = [r for r in records if r.get("bench") == "load" and r["config"]["mode"] == "repeated"]
    for record in loaded:
        gigabytes = record["config"]["file_bytes"] / 1e9
        what = f"load {gigabytes:.1f} GB from the page cache, ready to run (s)"
        rows.append([what, metric(record, "seconds", ".2f"), "", ""])
    rows = [row for row in rows if row[1]]
    if not rows:
        return NO_SPEED
    table = markdown(["work", "sp", "llama.cpp", "its best setting"], rows)
    short = find(records, "prefill", **OURS, prompt_tokens=PROMPTS[0], path="sm_90a")
    return f"{table}\n\n{_spread(short)}" if short else table


def kernels(records: Sequence[Record]) -> str:
    """The widest product in every mode, and dense attention, each beside the libraries that ran in the same process.

    Examples
    --------
    >>> kernels([]) == NO_KERNELS
    True
    """
    rows = []
    for mode, words in MODES.items():
        keys = {"type": "Q4_K", **PRODUCT, "mode": mode, "math": "bf16", "epilogue": None}
        own, portable, library = (find(records, "matmul", **keys, path=p) for p in ("sm_90a", "portable", "cublas"))
        size = " x ".join(str(size) for size in PRODUCT.values())
        told = f"{metric(library, 'tflops', '.0f')} (cuBLAS, the same weight in bf16)" if library else ""
        rows.append([f"Q4_K x bf16, {size}, {words}", _tflops(own), _tflops(portable), told])
    for head_dim, heads in ((128, "16/8"), (256, "24/4")):
        own, *others = (
            find(records, "attention", head_dim=head_dim, tokens=32768, path=path) for path in ("sm_90a", *ATTENTION)
        )
        told = ", ".join(f"{_tflops(r)} ({name})" for r, name in zip(others, ATTENTION.values(), strict=True) if r)
        rows.append([f"dense causal attention, d {head_dim}, {heads} heads, 32K", _tflops(own), "", told])
    rows = [row for row in rows if row[1]]
    return markdown(["kernel (TFLOP/s)", "sm_90a", "portable", "library"], rows) if rows else NO_KERNELS


def peers_of(records: Sequence[Record], model: Mapping[str, object]) -> list[Record]:
    """Prefills and decodings of a model by llama.cpp, at all settings."""
    asked = {**model, "engine": ENGINE}
    speeds = (r for r in records if r.get("bench") in ("prefill", "decode"))
    return [r for r in speeds if all(r["config"].get(key) == value for key, value in asked.items())]


def best_decoding(peers: Sequence[Record]) -> Record | None:
    """The fastest decoding from an empty context among `peers_of`."""
    empty = [r for r in peers if r["bench"] == "decode" and not r["config"]["context"]]
    return max(empty, key=lambda r: float(r["metrics"]["tok_s"]), default=None)


def of_peer(record: Record | None, form: str) -> tuple[str, str]:
    """Its rate and the setting it was reached at."""
    if record is None:
        return "", ""
    config = record["config"]
    batches = "default" if config["batch"] is None else f"`-b {config['batch']} -ub {config['ubatch']}`"
    return metric(record, "tok_s", form), f"{batches}, build {config['build']}"


def _tflops(record: Record | None) -> str:
    return metric(record, "tflops", ".0f")


def _spread(record: Record) -> str:
    rates = sorted(record["samples"])
    return (
        f"A prefill of {PROMPTS[0]} tokens is as fast as the host launches kernels, which varies: its {len(rates)} "
        f"samples are {rates[0]:,.0f} to {rates[-1]:,.0f} tok/s."
    )
