"""Write ``MODEL_CARD.md`` from records: ``python model_card.py RESULTS ASSETS CPU_RESULTS EVALS``; no number is typed.

RESULTS: ``fit_*.jsonl`` and ``train_draft.jsonl`` of the training, ``check_draft.jsonl``. ASSETS: the files that were
measured, ``drafter_heads.json`` beside them. CPU_RESULTS: ``draft.jsonl`` of `accept_draft`. EVALS: rows of
`sp eval --out` and `sp sweep` by these files. What has no record yet is said to have none, and told on stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from draft_figures import acceptance_table, depth_table

from sp.evals.trained_for import note_of_file
from sp.gguf import GGUFFile
from sp.json_lines import read_jsonl
from sp.scoring.attention.head_map import HeadMap
from sp.studies.pages.report import find_sources
from sp.studies.style import tokens_label
from sp.studies.sweep.cells import Table
from sp.studies.sweep.store import read_results
from sp.studies.tables.report_tables import grid_table, markdown, share

NOT_YET = "Not measured yet."
CHECKED = """\
In PyTorch on {gpu}, chains only and only prompts that the target answers rightly (*n*: so many of those drawn). The
columns at the right tell how often the guess so many tokens ahead is right, counted from every token of the answers:

{by_depth}"""
LEFT_OUT = re.compile(r" weights=\S+-without-\S+")
RETRIEVES = 0.1
"""Least score of a head that the scorer `retrieval_heads` takes."""


def thousands(number: int) -> str:
    """With spaces.

    Examples
    --------
    >>> thousands(22792960)
    '22 792 960'
    """
    return f"{number:,}".replace(",", " ")


def file_facts(path: Path) -> dict[str, str]:
    """Shape and size of a model file, as the template names them."""
    with GGUFFile.open(path) as file:
        keys = {key.removeprefix(f"{file.architecture}."): value for key, value in file.metadata.items()}
        sizes = {name: prod(tensor.shape) for name, tensor in file.tensors.items()}
        formats = sorted({tensor.type_name for tensor in file.tensors.values()})
        inside = [n for name, n in sizes.items() if name.startswith("blk.") and len(file.tensors[name].shape) == 2]
        vocabulary = len(file.metadata.get("tokenizer.ggml.tokens", []))
        heads, kv = keys["attention.head_count"], keys["attention.head_count_kv"]
        shape = (
            f"`{file.architecture}`: {keys['block_count']} layers, hidden {keys['embedding_length']}, "
            f"FFN {keys['feed_forward_length']}, {heads}/{kv} heads of {keys['attention.key_length']}"
        )
        if "full_attention_interval" in keys:
            shape += (
                f"; every {ordinal(keys['full_attention_interval'])} layer attends (rotary "
                f"{keys['rope.dimension_count']}), the others are Gated DeltaNets with {keys['ssm.group_count']}/"
                f"{keys['ssm.time_step_rank']} heads of {keys['ssm.state_size']}"
            )
        return {
            "shape": shape,
            "parameters": thousands(sum(sizes.values())),
            "inside": thousands(sum(inside)),
            "vocabulary": f"{thousands(vocabulary)}, regex `{keys.get('tokenizer.ggml.pre', '')}`",
            "file": f"{', '.join(formats)}, {thousands(file.nbytes)} bytes",
            "context": thousands(keys["context_length"]),
        }


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th."""
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def training_table(results: Path) -> str:
    """Every start of every training run in a folder."""
    rows: list[list[str]] = []
    for path in sorted([*results.glob("fit_*.jsonl"), *results.glob("train_draft*.jsonl")]):
        starts: list[list[dict[str, Any]]] = []
        for record in read_jsonl(path):
            if "config" in record:
                starts.append([])
            elif "lr" in record:
                starts[-1].append(record)
        for number, logged in enumerate(filter(None, starts), 1):
            stages, last = ", ".join(dict.fromkeys(one["stage"] for one in logged)), logged[-1]
            seconds, tokens = f"{last['seconds']:.0f}", f"{last['tokens'] / 1e6:.0f} M"
            rows.append([path.stem, str(number), stages, str(last["step"]), tokens, seconds])
    return markdown(["run", "start", "stages", "steps", "tokens", "seconds"], rows)


def eval_rows(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], str]:
    """Rows of all files of `sp eval` and `sp sweep` in folders, each example once a way to read it; and on which GPUs.

    Trained scorers are named by what their weights never saw. GPUs are those that sweeps tell of.
    """
    sources = find_sources(folders)
    rows, results = [row for path in sources.evals for row in read_jsonl(path)], read_results(sources.results)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in [*rows, *results.all_rows()]:
        scorer = LEFT_OUT.sub(" (this task left out)", str(row["scorer"]))
        key = (row["task"], row["example"], scorer, row["selector"], row["keep_ratio"])
        found.setdefault(key, row | {"scorer": scorer})
    gpus = sorted({str(one["gpu"]) for one in results.sessions.values() if one.get("gpu")})
    return list(found.values()), f", on {' and '.join(gpus)}" if gpus else ""


def full_table(rows: list[dict[str, Any]]) -> str:
    """Right answers of the full prefill by task and length."""
    whole = [row for row in rows if row["cell"] < 0]
    groups = Table.of(whole).groups("task", "tokens_asked")
    lengths = sorted({length for _, _, length in groups})
    found = {(task, length): f"{share(group)}, n = {group.n}" for (_, task, length), group in groups.items()}
    lines = [[task, *(found.get((task, n), "") for n in lengths)] for task in sorted({task for _, task, _ in groups})]
    return markdown(["task", *map(tokens_label, lengths)], lines)


def strategy_tables(rows: list[dict[str, Any]], note: str) -> str:
    """Right answers by strategy and task, by length and keep ratio; under each, what the drafter was trained for."""
    parts = []
    for length in sorted({row["tokens_asked"] for row in rows}):
        table = Table.of([row for row in rows if row["tokens_asked"] == length])
        parts += [
            f"{tokens_label(length)} tokens, keep ratio {keep:g}:\n\n"
            f"{grid_table(table, 'task', share, keep=keep)}\n\n{note}"
            for keep in table.values("keep_ratio")
            if keep < 1
        ]
    return "\n\n".join(parts)


def heads_sentence(path: Path) -> str:
    """Which heads of the drafter retrieve."""
    found = HeadMap.load(path)
    ranked = sorted(((score, layer, head) for layer, row in found.scores.items() for head, score in enumerate(row)))
    best = [f"head {head} of layer {layer} ({score:.2f})" for score, layer, head in ranked[::-1] if score > RETRIEVES]
    counted = f"{found.made['right']} of {found.made['prompts']} prompts of the task {', '.join(found.made['tasks'])}"
    said = f"Of the drafter's {len(ranked)} heads, {len(best)} retrieve: {', '.join(best) or 'none'}"
    return f"{said} (counted on {counted})."


def tokens_of(path: Path) -> list[str]:
    """The vocabulary of a file."""
    with GGUFFile.open(path) as file:
        return list(file.metadata["tokenizer.ggml.tokens"])


def draft_section(results: Path, assets: Path, cpu_results: Path) -> str:
    """What is told of the draft, as far as there are records."""
    log, cpu, gpu = results / "train_draft.jsonl", cpu_results / "draft.jsonl", results / "check_draft.jsonl"
    missing = [path for path in (log, cpu, gpu, assets / "draft.gguf") if not path.exists()]
    if missing:
        print(f"not all is told of the draft: no {', '.join(map(str, missing))}", file=sys.stderr)
    if set(missing) - {gpu}:
        return f"## The draft of the target\n\n{NOT_YET}"
    trained, accepted = next(read_jsonl(log)), list(read_jsonl(cpu))
    checked = [] if missing else list(read_jsonl(gpu))
    shape = trained["shape"]
    fill = {
        "layers": shape["layers"],
        "ffn": shape["ffn"],
        "heads": shape["heads"],
        "fed": ", ".join(map(str, shape["target_layers"])),
        "parameters": thousands(trained["parameters"]),
        "bytes": thousands((assets / "draft.gguf").stat().st_size),
        "acceptance": acceptance_table(accepted),
        "cpu": accepted[0]["machine"]["cpu"],
        "date": accepted[0]["date"][:10],
        "checked": "",
    }
    if checked:
        by_depth = depth_table([one for one in checked if one["right"]])
        fill["checked"] = CHECKED.format(gpu=checked[0]["gpu"], by_depth=by_depth)
    return template("model_card_draft.md").format(**fill).rstrip()


def template(name: str) -> str:
    """A text of this folder with places to fill."""
    return (Path(__file__).parent / name).read_text()


def main(results: Path, assets: Path, cpu_results: Path, *evals: Path) -> None:
    """Fill the template."""
    drafter, target = (file_facts(assets / f"{role}.gguf") for role in ("drafter", "target"))
    rows, where = eval_rows(there) if (there := [folder for folder in evals if folder.is_dir()]) else ([], "")
    if not rows:
        print(f"nothing is told of accuracy: no rows in {' or '.join(map(str, evals))}", file=sys.stderr)
    ratio = int(target["inside"].replace(" ", "")) / int(drafter["inside"].replace(" ", ""))
    same = tokens_of(assets / "drafter.gguf") == tokens_of(assets / "target.gguf")
    fill = {f"drafter_{key}": value for key, value in drafter.items()}
    fill |= {f"target_{key}": value for key, value in target.items()}
    fill |= {
        "ratio": f"{ratio:.1f}",
        "shared": "the drafter's" if same else "trained on another mix: the two differ",
        "training": training_table(results),
        "where": where,
        "full": full_table(rows) if rows else NOT_YET,
        "strategies": strategy_tables(rows, note_of_file(assets / "drafter.gguf")) if rows else NOT_YET,
        "heads": heads_sentence(assets / "drafter_heads.json"),
        "draft": draft_section(results, assets, cpu_results),
    }
    (assets / "MODEL_CARD.md").write_text(template("model_card_template.md").format(**fill))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
