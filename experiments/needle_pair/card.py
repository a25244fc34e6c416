"""Write ``MODEL_CARD.md`` from the records: ``python card.py RESULTS ASSETS CPU_RESULTS``; no number is typed.

RESULTS are those of the training machine, CPU_RESULTS those of `draft_accept`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from draft_figures import acceptance_table, depth_table, parts_table

from sp.evals.trained_for import TRAINED_FOR


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def percent(k: int, n: int) -> str:
    return f"{100 * k / n:.1f} %" if k < n else "100 %"


def accuracy_table(records: list[dict]) -> str:
    out = ["| task | prompt tokens | kept | correct / n | accuracy | interval |", "|---|---|---|---|---|---|"]
    for r in records:
        if "values_found" in r:
            continue
        low, high = r["interval"]
        kept = "all" if r["keep"] == 1.0 else f"{r['keep']:.0%} of the haystack + needle"
        out.append(
            f"| {r['task']} | {r['length']} | {kept} | {r['correct']} / {r['n']} | {percent(r['correct'], r['n'])} "
            f"| {100 * low:.1f} to {100 * high:.1f} |"
        )
    return "\n".join(out)


def recall_table(records: list[dict]) -> str:
    names = ["tail@0.05", "lookahead@0.05", "random@0.05", "head_tail@0.05", "tail@0.1", "lookahead@0.1", "random@0.1"]
    out = ["| task | prompt tokens | n | exact match | " + " | ".join(names) + " |", "|" + "---|" * (4 + len(names))]
    for r in records:
        cells = [percent(r["recall"][n][0], r["recall"][n][1]) for n in names]
        out.append(
            f"| {r['task']} | {r['length']} | {r['n']} | {percent(r['correct'], r['n'])} | " + " | ".join(cells) + " |"
        )
    return "\n".join(out)


def training(results: Path) -> str:
    out = ["| part | stages | steps | tokens | seconds |", "|---|---|---|---|---|"]
    for path in sorted(results.glob("train_*.jsonl")):
        points = [r for r in rows(path) if "lr" in r]
        stages = ", ".join(dict.fromkeys(p["stage"] for p in points))
        last = points[-1]
        size = f"{last['tokens'] / 1e6:.0f} M | {last['seconds']:.0f}"
        out.append(f"| {path.stem} | {stages} | {last['step']} | {size} |")
    return "\n".join(out)


def main(results: Path, assets: Path, cpu_results: Path) -> None:
    target, drafter = rows(results / "eval_target.jsonl"), rows(results / "eval_drafter.jsonl")
    parts = {f"part {n}": rows(results / f"eval_draft_{n}.jsonl") for n in (1, 2, 3)}
    draft, accepted = parts["part 3"], rows(cpu_results / "draft.jsonl")
    shape = rows(results / "train_draft_2.jsonl")[0]["shape"]
    free = next(r for r in target if r["task"] == "multivalue-generated")["values_found"]
    fill = {
        "drafter_bytes": f"{(assets / 'drafter.gguf').stat().st_size:,}".replace(",", " "),
        "draft_bytes": f"{(assets / 'draft.gguf').stat().st_size:,}".replace(",", " "),
        "draft_parameters": f"{rows(results / 'train_draft_2.jsonl')[0]['parameters']:,}".replace(",", " "),
        "draft_layers": shape["layers"],
        "draft_ffn": shape["ffn"],
        "draft_heads": shape["heads"],
        "acceptance": acceptance_table(accepted),
        "by_depth": depth_table(draft),
        "parts": parts_table(parts),
        "draft_cpu": accepted[0]["machine"]["cpu"],
        "draft_gpu": draft[0]["gpu"],
        "draft_date": accepted[0]["date"][:10],
        "target_bytes": f"{(assets / 'target.gguf').stat().st_size:,}".replace(",", " "),
        "training": training(results),
        "date": target[0]["date"][:10],
        "trained_for": TRAINED_FOR,
        "found_mean": f"{100 * free['mean']:.0f} %",
        "found_all": str(free["all"]),
        "found_n": str(free["n"]),
    }
    text = "### Target\n\n" + accuracy_table(target)
    text += (
        "\n\n### Drafter: exact match and needle recall\n\nRecall: all value tokens of the asked needles lie in kept "
        "chunks (chunk 32, max over layers and heads, mean over 8 queries, pool 13, nothing forced). "
        "`tail`: last 8 prompt tokens; `lookahead`: last prompt token + 7 generated; "
        "`random` and `head_tail` are controls.\n\n"
    )
    text += recall_table(drafter)
    template = (Path(__file__).parent / "card_template.md").read_text()
    (assets / "MODEL_CARD.md").write_text(template.format(**fill, tables=text))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
