"""`sp train`: train scorers on evidence or oracles."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from sp.commands.common import OnDevice
from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import AsJson, Wide, print_json, print_table, progress_bar, text_width
from sp.errors import ConfigError

if TYPE_CHECKING:
    from sp.scoring.trained.base import ScorerFile


def train_scorer(
    data: Annotated[Path, arg("YAML file of the training data, e.g. experiments/scorers/probe.yaml.")],
    out: Annotated[Path | None, opt("-o", "--out", writes="file", help="Write the weights to this file.")] = None,
    leave_one_out: Annotated[
        Path | None,
        opt(
            writes="folder",
            help="Also train without each task in turn; writes KIND-without-TASK.safetensors into this folder.",
        ),
    ] = None,
    device: OnDevice = "auto",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Train a scorer on the evidence of tasks, or on an oracle, and evaluate it on held-out examples.

    The data file has the kind (probe, cross_attention, lines), the tasks with their options, lengths and numbers of
    examples, and the source of labels:

      kind: probe
      tasks: [needle, {name: vt, hops: 2}]
      lengths: [1024, 4096]
      n: 20
      labels: evidence   # or {scorer: target_attention, top: 0.02}
      leave_out: vt      # only for evaluation
      drafter: d.gguf    # the embedded one if omitted, also of target
      options: {chunk_size: 16, neighbours: 1, l2: 0.001}

    Two runs on one machine give the same weights; they belong to the drafter that they were trained for.

    Examples
    --------
      sp train scorer experiments/scorers/probe.yaml -o scorer.safetensors
      sp train scorer data.yaml --leave-one-out scorers --device cuda
      sp run --scorer probe --set scorer.weights=scorer.safetensors ...
      sp eval needle --scorer 'probe[weights=scorer.safetensors],tail[queries=24]'
    """
    from sp.studies import training

    if out is None and leave_one_out is None:
        raise ConfigError("nothing would be written; pass a file with -o, or a folder with --leave-one-out")
    plan = training.load_plan(data)
    if leave_one_out is not None:
        training.without(plan, next(iter(plan.tasks)))  # raises now for a plan with a single task
    models = training.TrainingModels.open(plan, device)
    training.check_lengths(models, plan)
    outputs: list[tuple[Path, ScorerFile]] = []
    rows: list[dict[str, Any]] = []
    with progress_bar("training", training.steps(plan, leave_one_out is not None)) as advance:
        trainer = training.Trainer(models, plan, advance)
        if out is not None:
            file = trainer.fit(plan)
            rows += [row | {"file": out.name} for row in trainer.judge(file, tuple(plan.tasks))]
            file.save(out)
            outputs.append((out, file))
        if leave_one_out is not None:
            leave_one_out.mkdir(parents=True, exist_ok=True)
            for name, file, judged in training.leave_one_out(trainer):
                path = leave_one_out / training.file_name(plan.kind, name)
                file.save(path)
                outputs.append((path, file))
                rows += [row | {"file": path.name} for row in judged]
    if as_json:
        files = [{"file": str(path), "kind": file.kind, "made": dict(file.made)} for path, file in outputs]
        print_json({"model": outputs[0][1].model, "beside": training.baseline_name(), "files": files, "held_out": rows})
        return
    show(rows, training.baseline_name(), wide)
    for path, file in outputs:
        tasks, prompts = len(file.made["tasks"]), file.made["prompts"]
        data_used = f"{tasks} task{'s' * (tasks != 1)}, {prompts} prompts, labels: {file.made['labels']}"
        print(f"written to {path} ({path.stat().st_size:,} bytes; {data_used})")


def show(rows: list[dict[str, Any]], reference: str, wide: bool = False) -> None:
    """Print a table of results on held-out examples, next to those of a reference scorer."""
    if not rows:
        return
    heads = ["task", "tokens", "n", "AUC", "kept", f"AUC, {reference}", "kept"]
    names = ("auc", "recall", "beside_auc", "beside_recall")
    cells = [
        [row["task"] + (" (left out)" if row["left_out"] else ""), f"{row['tokens']:,}", str(row["n"])]
        + ["-" if row[name] is None else f"{row[name]:.3f}" for name in names]
        for row in rows
    ]
    print_table(heads, cells, "table", 1, wide=wide)
    print(fill(LEGEND, text_width()))


LEGEND = (
    "Held-out examples. AUC: probability that a token of the evidence scores above another token of the document; "
    "kept: share of the evidence that selector sentence keeps at keep ratio 0.05; - if question and markup exceed it."
)
