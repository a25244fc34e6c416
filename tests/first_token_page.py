"""The tables of a real drafter in docs/results/time-to-first-token.md, made from records; run it to write them anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models_page import table, write

from sp.bench.record import newest
from sp.scoring.base import attending

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "time-to-first-token.md"
RECORDS = ROOT / "results" / "nvidia-h200"
TARGETS = {"qwen3.6-27b-q4_k_m.synthetic": "27B", "qwen3.6-35b-a3b-q4_k_m.synthetic": "35B-A3B"}
DRAFTERS = {"smollm2-135m.gguf": "SmolLM2", "qwen3.5-0.8b-bf16.synthetic": "Qwen3.5-0.8B shapes, random"}
TOKENS = (8192, 131072, 983040)
STAGES = ("tokenise for drafter", "score", "select", "target prefill")


def stages() -> list[str]:
    """Milliseconds of each stage of a request."""
    rows: list[tuple[Any, ...]] = []
    for record in newest(RECORDS / "ttft.jsonl"):
        c, m = record["config"], record["metrics"]
        if c["target"] not in TARGETS or c["drafter"] not in DRAFTERS or c["prompt_tokens"] not in TOKENS:
            continue
        spent = m["stages"]
        cells = [*(spent.get(name, 0.0) for name in STAGES), m["ttft_s"] - sum(spent.get(name, 0.0) for name in STAGES)]
        how = attending(c) or "dense"
        own = f"{m['ttft_s'] / m['full_ttft_s']:.3f}" if m.get("full_ttft_s") else ""
        milliseconds = [f"{1e3 * seconds:.0f}" for seconds in (*cells, m["ttft_s"])]
        models = list(TARGETS).index(c["target"]), list(DRAFTERS).index(c["drafter"])
        key = *models, c["cards"], c["prompt_tokens"], c["keep_ratio"], how
        target = TARGETS[c["target"]] + (f", {c['cards']} GPUs" if c["cards"] > 1 else "")
        named = target, DRAFTERS[c["drafter"]], f"{c['prompt_tokens']:,}", f"{c['keep_ratio']:g}", how
        rows.append((key, [*named, *milliseconds, own]))
    heads = ["target", "drafter", "tokens", "keep", "reads", *STAGES, "between", "first token", "of the full prefill"]
    return table(heads, [cells for _, cells in sorted(rows)])


def scoring() -> list[str]:
    """Milliseconds that scorers take of SmolLM2."""
    found: dict[str, dict[tuple[int, str], float]] = {}
    for record in newest(RECORDS / "real_drafter.jsonl"):
        c, m = record["config"], record["metrics"]
        if record["date"] >= "2026-11-29T20" and c["math"] == "bf16":
            found.setdefault(c["scorer"], {})[c["prompt_tokens"], c["attention"]] = 1e3 * m["score_s"]
    dense, sparse = "dense", "attention=flashprefill density=0.05"
    columns = [(2048, dense), (5120, dense), (8192, dense), (32768, sparse), (131072, sparse)]
    rows = [
        [f"`{scorer}`", *("" if at not in cells else f"{cells[at]:.1f}" for at in columns)]
        for scorer, cells in sorted(found.items(), key=lambda one: (one[0] == "bm25", one[1][5120, dense]))
    ]
    return table(["scorer", "2K", "5K", "8K", "32K, density 5 %", "128K, density 5 %"], rows)


def tables() -> dict[str, list[str]]:
    """By the names of their places in the page."""
    return {"stages": stages(), "scoring": scoring()}


if __name__ == "__main__":
    write(PAGE, "first_token_page.py", tables())
