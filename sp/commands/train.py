"""`sp train`: scorers that learn which tokens matter."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from sp.commands.asked import OnDevice
from sp.commands.shell.line import arg, opt
from sp.commands.shell.terminal import AsJson, Wide, check_folder, print_json, print_table, progress_bar, text_width
from sp.errors import ConfigError

if TYPE_CHECKING:
    from sp.scoring.trained.base import ScorerFile


def train_scorer(
    data: Annotated[Path, arg("What to learn from, e.g. experiments/scorers/probe.yaml.")],
    out: Annotated[Path | None, opt("-o", "--out", help="Write the weights to this file.")] = None,
    leave_one_out: Annotated[
        Path | None,
        opt(help="Also train one file a task that never saw it: KIND-without-TASK.safetensors, here."),
    ] = None,
    device: OnDevice = "auto",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Fit a scorer to the evidence of tasks, or to an oracle, and show what it finds in examples it has not seen.

    The data file names the kind (probe, cross_attention, lines), the tasks with their options, lengths and numbers
    of examples, and where labels come from:

      kind: probe
      tasks: [needle, {name: vt, hops: 2}]
      lengths: [1024, 4096]
      n: 20
      labels: evidence   # or {scorer: target_attention, top: 0.02}
      leave_out: vt      # judged by, not learnt from
      drafter: d.gguf    # the embedded one if left out; target likewise
      options: {chunk_size: 16, neighbours: 1, l2: 0.001}

    Two runs on one machine find the same weights; they belong to the drafter they were trained for.

    Examples
    --------
      sp train scorer experiments/scorers/probe.yaml -o scorer.safetensors
      sp train scorer data.yaml --leave-one-out scorers --device cuda
      sp run --scorer probe --set scorer.weights=scorer.safetensors ...
      sp eval needle --scorer 'probe[weights=scorer.safetensors],tail[queries=24]'
    """
    from sp.studies import training

    if out is None and leave_one_out is None:
        raise ConfigError("nothing would be written; name a file with -o, or a folder with --leave-one-out")
    if out is not None and (out.is_dir() or not (out.parent.is_dir() or out.parent == leave_one_out)):
        raise ConfigError(f"{out}: there is no folder {out.parent} to write it in, or it is a folder itself")
    check_folder(leave_one_out, "--leave-one-out")
    plan = training.load_plan(data)
    if leave_one_out is not None:
        training.without(plan, next(iter(plan.tasks)))
    readers = training.Readers.open(plan, device)
    training.check_lengths(readers, plan)
    written: list[tuple[Path, ScorerFile]] = []
    rows: list[dict[str, Any]] = []
    with progress_bar("training", training.steps(plan, leave_one_out is not None)) as advance:
        trainer = training.Trainer(readers, plan, advance)
        if out is not None:
            file = trainer.fit(plan)
            rows += [row | {"file": out.name} for row in trainer.judge(file, tuple(plan.tasks))]
            out.parent.mkdir(parents=True, exist_ok=True)
            file.save(out)
            written.append((out, file))
        if leave_one_out is not None:
            leave_one_out.mkdir(parents=True, exist_ok=True)
            for name, file, found in training.leave_one_out(trainer):
                path = leave_one_out / training.file_name(plan.kind, name)
                file.save(path)
                written.append((path, file))
                rows += [row | {"file": path.name} for row in found]
    if as_json:
        files = [{"file": str(path), "kind": file.kind, "made": dict(file.made)} for path, file in written]
        print_json({"model": written[0][1].model, "beside": training.baseline_name(), "files": files, "held_out": rows})
        return
    show(rows, training.baseline_name(), wide)
    for path, file in written:
        tasks, prompts = len(file.made["tasks"]), file.made["prompts"]
        told = f"{tasks} task{'s' * (tasks != 1)}, {prompts} prompts, labels: {file.made['labels']}"
        print(f"written to {path} ({path.stat().st_size:,} bytes; {told})")


def show(rows: list[dict[str, Any]], beside: str, wide: bool = False) -> None:
    """The table of what was found in held-out examples."""
    if not rows:
        return
    heads = ["task", "tokens", "n", "AUC", "kept", f"AUC, {beside}", "kept"]
    names = ("auc", "recall", "beside_auc", "beside_recall")
    cells = [
        [row["task"] + (" (left out)" if row["left_out"] else ""), f"{row['tokens']:,}", str(row["n"])]
        + ["-" if row[name] is None else f"{row[name]:.3f}" for name in names]
        for row in rows
    ]
    print_table(heads, cells, "table", 1, wide=wide)
    print(fill(LEGEND, text_width()))


LEGEND = (
    "Held-out examples. AUC: chance that a token of the evidence scores above another of the document; kept: share of "
    "the evidence that selector sentence keeps at keep ratio 0.05, - where question and markup alone are more."
)
