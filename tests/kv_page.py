"""The tables of docs/kv-cache.md, made from records and rows; run it to write them anew."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from models_page import table, write

from sp.bench.record import newest, reads_all
from sp.models import KVType
from sp.models.synthetic.shapes import find_shape
from sp.planning.memory import kv_bytes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "kv-cache.md"
GPU, CPU = ROOT / "results" / "nvidia-h200", ROOT / "results" / "amd-epyc-2core"
TEXTS = ("alice.txt", "GPL-3", "as-you-like-it.txt", "argparse.py")
MODELS = {"smollm2-135m.gguf": "SmolLM2", "gemma-3-270m.gguf": "Gemma 3"}
TYPES = ("q8_0", "k=q8_0,v=q4_0", "5bit", "4bit", "q4_0")


def quality() -> list[str]:
    """KL and equal best tokens of every type, by model, text and length, on the GPU and on the CPU."""
    found: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for place, folder in (("H200", GPU), ("CPU", CPU)):
        for record in newest(folder / "kv_quality.jsonl"):
            c, m = record["config"], record["metrics"]
            kv = KVType.parse(f"k={c['k']},v={c['v']}", "record")
            cell = f"{m['kl']:.4f} ± {1.96 * m['kl_error']:.4f}, {100 * m['top1']:.1f}"
            found[place, list(MODELS).index(c["model"]), c["tokens"], TEXTS.index(c["text"])][kv] = cell
    names = list(MODELS.values())
    rows = [
        [place, names[model], f"{tokens:,}", TEXTS[text], *(cells.get(kv, "") for kv in TYPES)]
        for (place, model, tokens, text), cells in sorted(found.items(), key=lambda item: (item[0][1:], item[0][0]))
    ]
    return table(["where", "model", "tokens", "text", *(f"`{kv}`" for kv in TYPES)], rows)


def peer() -> list[str]:
    """llama.cpp's types on the same files and texts, weights as they are and unpacked."""
    types = ("q8_0:q8_0", "q5_1:q5_1", "q5_0:q5_0", "q8_0:q4_0", "q4_0:q4_0")
    found: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for line in (CPU / "real" / "llama_cpp_kv.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        c, m = record["config"], record["metrics"]
        if c["flash_attention"] and c.get("rotate") is not False and c["tokens"] == 1024:
            name = c["model"].removesuffix(".gguf") + ".gguf"
            weights = "F32" if c["type"] == "f32" else "as in the file"
            key = list(MODELS).index(name) if name in MODELS else 9, weights, TEXTS.index(c["text"])
            found[key][f"{c['k']}:{c['v']}"] = f"{m['kl']:.4f}"
    names = list(MODELS.values())
    rows = [
        [names[model], weights, TEXTS[text], *(cells.get(kv, "") for kv in types)]
        for (model, weights, text), cells in sorted(found.items())
        if model < len(names)
    ]
    return table(["model", "weights", "text", *types], rows)


def speed() -> list[str]:
    """Bytes and speed of the 27B shape."""
    config, seen = find_shape("qwen3.6-27b").config, dict[tuple[str, str], float]()
    records = [*newest(GPU / "prefill.jsonl"), *newest(GPU / "decode.jsonl")]
    for record in sorted(records, key=lambda record: record["date"]):
        c, m = record["config"], record["metrics"]
        if c.get("shape") != "qwen3.6-27b" or c.get("engine") != "sp" or c.get("math", "bf16") != "bf16":
            continue
        if c.get("path") != "sm_90a" or c.get("cards", 1) != 1 or not reads_all(c):
            continue
        what = c.get("prompt_tokens") or c.get("context")
        kind = "prefill" if record["bench"] == "prefill" else "decode"
        if what in (8192, 131072) and c.get("method", "greedy") == "greedy":
            seen[c["kv"].split()[0], f"{kind} {what}"] = m["tok_s"]
    rows = []
    for kv in ("f16", "q8_0", "5bit", "4bit", "q4_0"):
        a_token = kv_bytes(config, 131072, kv) / 131072
        cells = [seen.get((kv, name)) for name in ("prefill 8192", "prefill 131072", "decode 131072")]
        rows.append([f"`{kv}`", f"{a_token:,.0f}", *("" if cell is None else f"{cell:,.0f}" for cell in cells)])
    heads = ["cache", "bytes a token", "prefill 8K, tok/s", "prefill 128K", "decode behind 128K"]
    return table(heads, rows)


def evidence() -> list[str]:
    """Natural questions whose evidence is kept whole, by type of the drafter's cache."""
    counts: dict[tuple[str, bool, float], list[bool]] = defaultdict(list)
    with gzip.open(GPU / "real" / "kept_keys.jsonl.gz", "rt") as file:
        for row in map(json.loads, file):
            counts[row["kv"], row["hard"], row["keep_ratio"]].append(row["whole"])
    rows = []
    for kv in ("none", "f16", "q8_0", "5bit", "4bit", "q4_0"):
        cells = [counts[kv, hard, keep] for hard in (True, False) for keep in (0.2, 0.1, 0.05)]
        name = "a single prompt" if kv == "none" else f"`{kv}`"
        rows.append([name, *(f"{sum(cell)} of {len(cell)}" for cell in cells)])
    heads = [f"{kind} {keep}" for kind in ("hard", "easy") for keep in (0.2, 0.1, 0.05)]
    return table(["drafter's cache", *heads], rows)


def tables() -> dict[str, list[str]]:
    """By the names of their places in the page."""
    return {"kv quality": quality(), "kv peer": peer(), "kv speed": speed(), "kv evidence": evidence()}


if __name__ == "__main__":
    write(PAGE, "kv_page.py", tables())
