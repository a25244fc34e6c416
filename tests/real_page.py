"""Tables of docs/results/real.md and the README, from records; this prints them: PYTHONPATH=tests python ..."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "nvidia-h200"
SCORERS = ("auto", "probe", "lines", "calibrated", "tail", "bm25", "lexical", "head_tail", "random", "oracle")
CONTROLS = ("bm25", "lexical", "head_tail", "random", "oracle")
KINDS = {"natural": ("hard", "easy")} | dict.fromkeys(
    ("needles-6k", "needles-28k", "needles-60k", "needles-120k"), ("prose", "code", "jsonl")
)


def evidence() -> dict[tuple[str, str, str, float], dict[str, float]]:
    """Newest metrics by set, scorer, kind and keep ratio."""
    found = {}
    lines = [line for path in ROOT.glob("results/*/evidence.jsonl") for line in path.read_text().splitlines()]
    for record in sorted(map(json.loads, lines), key=lambda one: one["date"]):
        config = record["config"]
        scorer = config["scorer"].partition(" weights=")[0]
        found[config["set"], scorer, config["kind"], config["keep_ratio"]] = record["metrics"]
    return found


def table(name: str) -> list[str]:
    """Share kept whole, in percent, and its interval."""
    found, kinds = evidence(), KINDS[name]
    keeps = sorted({key[3] for key in found if key[:2] == (name, "auto")}, reverse=True)
    count = {kind: found[name, "auto", kind, keeps[0]]["n"] for kind in kinds}
    columns = [(kind, keep) for keep in keeps for kind in kinds]
    lines = ["| scorer | " + " | ".join(f"{kind}, {keep:g}" for kind, keep in columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    lines.append("| full prefill (n) | " + " | ".join(f"100 ({count[kind]})" for kind, _ in columns) + " |")
    for scorer in (one for one in SCORERS if (name, one, kinds[0], keeps[0]) in found):
        cells = []
        for kind, keep in columns:
            one = found[name, scorer, kind, keep]
            cells.append(f"{100 * one['kept_whole']:.0f} ({100 * one['low']:.0f}-{100 * one['high']:.0f})")
        label = f"`{scorer}` (control)" if scorer in CONTROLS and scorer != "oracle" else f"`{scorer}`"
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def times() -> list[str]:
    """Seconds of the scoring stage at 128K."""
    lines = [
        "| scorer | layers run | products | tokens | density | seconds, median | measured |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    newest = {}
    for record in sorted(map(json.loads, (RECORDS / "real_drafter.jsonl").open()), key=lambda one: one["date"]):
        config = record["config"]
        long = record["metrics"].get("tokens_read", 0) > 120_000
        if long and config["attention"] == "attention=flashprefill density=0.05":
            newest[config["scorer"], config["math"]] = record
    for (scorer, precision), record in newest.items():
        metrics = record["metrics"]
        tokens, seconds = f"{metrics['tokens_read']:,}", f"{metrics['score_s']:.3f}"
        cells = record["config"]["depth"], precision, tokens, f"{metrics['density']:.3f}", seconds
        lines.append(f"| `{scorer}` | " + " | ".join(map(str, cells)) + f" | {record['date'][:10]} |")
    return lines


if __name__ == "__main__":
    for name in KINDS:
        print(f"\n{name}\n\n" + "\n".join(table(name)))
    print("\n" + "\n".join(times()))
