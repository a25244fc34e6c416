"""The page's tables of mixtures of experts: whole models beside llama.cpp on the same file, requests, and products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sp.bench.llama_cpp import best_peer
from sp.studies.tables.first_result import first_result
from sp.studies.tables.lookup import Record, age, find, markdown, metric, percent
from sp.studies.tables.speed_table import MODEL, OURS, PORTABLE, PROMPTS, best_decoding, of_peer, peers_of

SHAPE, FILE = "qwen3.6-35b-a3b", "qwen3.6-35b-a3b (synthetic)"
NAME = "35B-A3B"
TARGET = f"{SHAPE}-q4_k_m.synthetic"
OTHERS = {
    "35B-A3B in the UD-Q4_K_XL mix": {"shape": SHAPE, "type": "ud-q4_k_xl"},
    "Qwen3-30B-A3B": {"shape": "qwen3-30b-a3b", "type": "q4_k_m"},
}
"""Further models, of which one prefill and decoding are shown."""
KERNEL_TOKENS = 8192
NO_MIXTURES = (
    "No record of a mixture's speed; `sp bench model --synthetic qwen3.6-35b-a3b --record results` makes some."
)
NO_EXPERTS = "No record of products of experts; `sp kernels bench --family experts --record results` makes some."


def mixtures(records: Sequence[Record]) -> str:
    """Prefill and decoding of the 35B-A3B shapes and `OTHERS`; llama.cpp at its best recorded setting.

    Examples
    --------
    >>> mixtures([]) == NO_MIXTURES
    True
    """
    ours = OURS | {"shape": SHAPE}
    random, from_file = ours | {"model": f"{SHAPE} q4_k_m (random)"}, ours | {"model": FILE}
    peers = peers_of(records, MODEL | {"shape": SHAPE})
    rows = []

    def add(what: str, mine: Record | None, form: str, peer: Record | None = None, file: Record | None = None) -> None:
        imbalance = None if mine is None else mine["metrics"].get("imbalance")
        loads = "" if imbalance is None else f"{imbalance:.1f}"
        rows.append([what, metric(mine, "tok_s", form), loads, metric(file, "tok_s", form), *of_peer(peer, form)])

    for tokens in PROMPTS:
        asked = {"prompt_tokens": tokens, "path": "sm_90a"}
        mine = find(records, "prefill", **random | asked)
        file = find(records, "prefill", **from_file | asked)
        add(f"{NAME}: prefill {tokens:,} tokens (tok/s)", mine, ",.0f", best_peer(peers, tokens), file)
    mine = find(records, "prefill", **random, prompt_tokens=PORTABLE, path="portable")
    add(f"{NAME}: prefill {PORTABLE:,} tokens, portable path forced (tok/s)", mine, ",.0f")
    empty = {"context": 0, "path": "sm_90a"}
    file = find(records, "decode", **from_file | empty)
    mine, what = find(records, "decode", **random | empty), f"{NAME}: decode, 64 tokens at empty context (tok/s)"
    add(what, mine, ".1f", best_decoding(peers), file)
    for name, which in OTHERS.items():
        asked = {"prompt_tokens": PORTABLE, "path": "sm_90a"}
        add(f"{name}: prefill {PORTABLE:,} tokens (tok/s)", find(records, "prefill", **OURS | which | asked), ",.0f")
        add(f"{name}: decode (tok/s)", find(records, "decode", **OURS | which | empty), ".1f")
    rows = [row for row in rows if row[1]]
    heads = ["work", "sp", "imbalance", "sp, the file", "llama.cpp, the file", "its best setting"]
    return markdown(heads, rows) if rows else NO_MIXTURES


def mixture_result(records: Iterable[Record]) -> str:
    """As `first_result`, of the mixture alone.

    Examples
    --------
    >>> from sp.studies.tables.first_result import NOTHING
    >>> mixture_result([]) == NOTHING
    True
    """
    return first_result(r for r in records if r.get("bench") == "ttft" and r["config"]["target"] == TARGET)


def experts(records: Sequence[Record]) -> str:
    """Products of experts of 8K tokens beside dense ones of as many weights, at the rows an expert has on average.

    Examples
    --------
    >>> experts([]) == NO_EXPERTS
    True
    """
    rows = []
    for part, dense_n in (("gated", 131072), ("down", 524288)):
        for path in ("sm_90a", "portable"):
            mine = find(records, "experts", part=part, tokens=KERNEL_TOKENS, path=path)
            dense = find(records, "experts", part="dense", n=dense_n, path=path)
            if mine is None or dense is None:
                continue
            config, rates = mine["config"], [r["metrics"]["tflops"] for r in (mine, dense)]
            rows.append(
                [
                    f"{'gate and up' if part == 'gated' else part}, {path}",
                    f"{config['imbalance']:.1f}",
                    metric(mine, "ms", ".2f"),
                    f"{rates[0]:.0f}",
                    f"{rates[1]:.0f}{age(dense)}",
                    percent(rates[0] / rates[1]),
                ]
            )
    heads = ["product", "imbalance", "ms", "TFLOP/s", "dense TFLOP/s", "share"]
    return markdown(heads, rows) if rows else NO_EXPERTS
