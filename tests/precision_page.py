"""Generated tables of docs/precision.md, from records; run it to update the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models_page import table, write

from sp.bench.record import newest, reads_all
from sp.models.network.arithmetic import FIRST_LAYERS, prequantized_label
from sp.models.synthetic.shapes import find_shape
from sp.session.measured import precisions_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "precision.md"
FOLDER = ROOT / "results" / "intel-r-xeon-r-processor-2core"
GPU = ROOT / "results" / "nvidia-h200"
SLOWER = ROOT / "results" / "nvidia-h100-80gb-hbm3"
"""A GPU with measurements of the present 8-bit attention."""
LATER = ROOT / "results" / "amd-epyc-2core"
"""Machine of the errors of the present 8-bit attention, which are the same on any machine."""
NAMES = {"smollm2": "SmolLM2", "gemma": "Gemma 3"}
WAYS = {
    "int8": "`--precision int8`",
    "fp8": "`--precision fp8`",
    "int8, nothing apart": "int8, no outlier channels apart",
    "int8, not rotated": "int8, not rotated",
    "int8 by 256, not rotated": "int8 by 256, not rotated",
    "int8 by row, nothing else": "int8, neither",
    "blocks of 32": "blocks of 32, emulated",
}
"""Ways of the records of real text, with their names on the page."""


def records(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    return newest(folder / f"{name}.jsonl")


def real() -> list[str]:
    """KL and equal best tokens of real models, by way; texts as columns."""
    measured = {
        (c["model"].partition("-")[0], c["text"].partition(".")[0], c["way"]): r["metrics"]
        for r in records("eight_bits", LATER)
        if (c := r["config"])["way"] in WAYS
    }
    texts = sorted({key[:2] for key in measured}, reverse=True)
    rows = []
    for way, name in WAYS.items():
        cells = [measured[*text, way] for text in texts]
        rows.append(
            [name, *(f"{1e3 * m['kl']:.1f} ± {1e3 * m['kl_error']:.1f} ({100 * m['top1']:.0f})" for m in cells)]
        )
    return table(["products", *(f"{NAMES[model]}, {text}" for model, text in texts)], rows)


def attention_of_real_text() -> list[str]:
    """The same of attention with keys in 8 bits."""
    rows = [
        [c["text"], f"{c['tokens']:,}", f"{1e3 * m['kl']:.2f} ± {1e3 * m['kl_error']:.2f}", f"{100 * m['top1']:.1f}"]
        for r in records("eight_bits", LATER)
        if (c := r["config"])["way"] == "attention" and (m := r["metrics"])
    ]
    return table(["text", "tokens", "KL (thousandths of a nat)", "same token (%)"], sorted(rows))


def large() -> list[str]:
    """Errors of the 27B shape on a GPU, by the number of first layers in BF16."""
    by_kernels: dict[tuple[str, str, int], dict[str, float]] = {}
    for record in newest(GPU / "eight_bit_large.jsonl"):
        c = record["config"]
        layers = find_shape(c["shape"]).config.layers
        bf16_layers = c.get("left", layers if c["math"] == "bf16" else FIRST_LAYERS)
        by_kernels[c["path"], c["math"], bf16_layers] = record["metrics"]
    del by_kernels["sm_90a", "bf16", layers]  # what others are compared with
    rows = [
        [path, precision, f"{bf16_layers}", f"{m['kl']:.2g}", f"{100 * m['logits']:.2g}", f"{100 * m['top']:.0f}"]
        for (path, precision, bf16_layers), m in sorted(
            by_kernels.items(), key=lambda item: (item[0][0] == "portable", *item[0][1:])
        )
    ]
    return table(["kernels", "products", "first layers in BF16", "KL (nats)", "logits (%)", "same token (%)"], rows)


def answers() -> list[str]:
    """Right answers of the embedded pair, task by task."""
    rows = []
    for record in sorted(records("eight_bit_answers"), key=lambda r: r["config"]["task"]):
        m = record["metrics"]
        cells = [f"{record['config']['task']} ({m['n']})"]
        for way in ("whole", "compressed"):
            cells += [f"{100 * m[f'{way}_bf16']:.0f}, {100 * m[f'{way}_int8']:.0f}", difference(m[f"{way}_difference"])]
        cells += [f"{m['same']:.0f}" for m in ({"same": 100 * m[f"{way}_same"]} for way in ("whole", "compressed"))]
        rows.append(cells)
    heads = ["task (n)", "whole: bf16, int8", "difference", "compressed: bf16, int8", "difference"]
    return table([*heads, "same, whole", "same, compressed"], rows)


def choices() -> list[str]:
    """Agreement of selections, and acceptance of the draft model, by task."""
    rows = []
    for record in sorted(records("eight_bit_answers"), key=lambda r: r["config"]["task"]):
        m = record["metrics"]
        rows.append(
            [
                record["config"]["task"],
                f"{100 * m['overlap']['mean']:.1f}",
                f"{100 * m['overlap']['least']:.0f}",
                f"{m['spearman']['mean']:.4f}",
                f"{m['acceptance_bf16']:.2f}, {m['acceptance_int8']:.2f}",
            ]
        )
    heads = ["task", "kept by both (%)", "the least", "rank correlation of scores", "tokens a pass: bf16, int8"]
    return table(heads, rows)


def attention() -> list[str]:
    """Errors of attention in per cent."""
    by_inputs = {record["config"]["inputs"]: record["metrics"] for record in records("eight_bit_attention", LATER)}
    heads = ["inputs", *next(iter(by_inputs.values()))]
    return table(heads, [[kind, *(f"{100 * error:.2g}" for error in m.values())] for kind, m in by_inputs.items()])


def selections() -> list[str]:
    """Selections from long prompts with 8-bit attention of the drafter, and with 8-bit products as well."""
    rows = []
    for record in sorted(records("eight_bit_kept", LATER), key=lambda r: r["config"]["task"]):
        m = record["metrics"]
        cells = [f"{record['config']['task']} ({m['n']})", f"{100 * m['bf16: evidence']:.0f}"]
        for way in ("attention", "attention and products"):
            alike = m[f"{way}: overlap"]
            cells += [difference(m[f"{way}: difference"]), f"{100 * alike['mean']:.1f} ({100 * alike['least']:.0f})"]
        rows.append([*cells, f"{m['attention: spearman']['least']:.4f}"])
    heads = ["task (n)", "evidence kept, bf16 (%)", "attention", "kept by both (least)", "and products"]
    return table([*heads, "kept by both (least)", "least rank correlation, attention"], rows)


def by_path(item: tuple[tuple[str, int], Any]) -> tuple[bool, int]:
    """Hopper's kernels first, then by length."""
    (path, tokens), _ = item
    return path == "portable", tokens


def prefills(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Prefill speed of the 27B shape on one GPU of a folder in tokens per second, with a float16 cache, by (path,
    length) and precision."""
    speeds: dict[tuple[str, int], dict[str, float]] = {}
    for record in newest(folder / "prefill.jsonl"):
        c = record["config"]
        alone = c["engine"] == "sp" and c.get("cards", 1) == 1 and reads_all(c)
        if alone and (c["shape"], c["type"], c["kv"]) == ("qwen3.6-27b", "q4_k_m", "f16"):
            speeds.setdefault((c["path"], c["prompt_tokens"]), {})[precisions_of(c)[0]] = record["metrics"]["tok_s"]
    return speeds


def rates() -> list[str]:
    """Prefill speed of the 27B shape in tokens per second, by path and length."""
    rows = [
        [
            f"{tokens:,}",
            path,
            weights,
            f"{speeds['bf16']:,.0f}",
            f"{speeds[way]:,.0f}",
            f"{speeds[way] / speeds['bf16']:.2f}",
        ]
        for (path, tokens), speeds in sorted(prefills(GPU).items(), key=by_path)
        for way, weights in (("int8", "per product"), (prequantized_label("int8"), "prequantized"))
        if way in speeds and "bf16" in speeds
    ]
    return table(["tokens", "kernels", "weights", "bf16 (tok/s)", "int8 (tok/s)", "int8 over bf16"], rows)


def short_rates() -> list[str]:
    """Prefill speed of short prompts with prequantized weights, on a GPU with such records."""
    ways = "bf16", prequantized_label("int8")
    rows = [
        [f"{tokens:,}", *(f"{speeds[way]:,.0f}" if way in speeds else "" for way in ways)]
        for (path, tokens), speeds in sorted(prefills(SLOWER).items())
        if path == "sm_90a" and ways[1] in speeds
    ]
    return table(["tokens", "bf16 (tok/s)", "prequantized int8 (tok/s)"], rows)


def attention_rates() -> list[str]:
    """Milliseconds of a drafter's attention and scoring on a GPU, by precision of attention."""
    layers, times = {}, {}
    for record in newest(SLOWER / "byte_attention.jsonl"):
        c = record["config"]
        if c["stage"] == "round":
            rounding = record["metrics"]["ms"]
        else:
            layers[c["density"], c["math"]] = record["metrics"]["ms"], c["read"]
    for record in newest(SLOWER / "drafter.jsonl"):
        c = record["config"]
        key = {"model": "qwen3-0.6b bf16 (random)", "prompt_tokens": 131072, "path": "sm_90a", "cards": 1}
        if "blocks" not in c and {name: c[name] for name in key} == key:
            times[c["density"]] = 1e3 * record["metrics"]["score_s"]
    rows = []
    for density in sorted({density for density, _ in layers}):
        (half, share), (eight, _) = (layers[density, precision] for precision in ("f16", "int8"))
        cells = [
            f"{100 * share:.1f} %",
            f"{half:.1f}",
            f"{eight:.1f}",
            f"{rounding:.2f}",
            f"{times[density]:.0f}",
        ]
        rows.append(cells)
    heads = ["blocks read", "a layer, float16 (ms)", "8-bit (ms)", "rounding (ms)"]
    return table([*heads, "scoring, 8-bit (ms)"], rows)


def difference(interval: Sequence[float]) -> str:
    """Format a difference in percentage points with its interval, without one if all pairs are equal."""
    mean, low, high = (100 * part for part in interval)
    return f"{mean:+.0f}" if low == high else f"{mean:+.0f} ({low:+.0f} to {high:+.0f})"


def tables() -> dict[str, list[str]]:
    """Generated tables of the page, by name."""
    return {
        "rates": rates(),
        "short": short_rates(),
        "real": real(),
        "real attention": attention_of_real_text(),
        "large": large(),
        "answers": answers(),
        "choices": choices(),
        "attention": attention(),
        "kept": selections(),
        "attention rates": attention_rates(),
    }


if __name__ == "__main__":
    write(PAGE, "precision_page.py", tables())
