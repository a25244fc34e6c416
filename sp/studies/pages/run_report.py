"""One run as a table, as a JSON object and as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sp.errors import printable
from sp.session import Answer, Pipeline, RunOptions, RunResult
from sp.trace import Trace, write_atomic


def stage_rows(answer: Answer) -> list[dict[str, Any]]:
    """Stages of one pass with their share of its total."""
    total = answer.trace.seconds or 1.0
    return [{**stage.as_dict(), "share": stage.seconds / total} for stage in answer.trace.stages]


def mean_density(densities: tuple[float, ...]) -> float:
    """Mean over layers; none are told of where attention was dense."""
    return sum(densities) / len(densities) if densities else 1.0


def drafter_density(result: RunResult) -> float | None:
    """The drafter's, or None where no attention was looked at."""
    found = result.importance
    if found is None or (found.by_layer is None and not found.densities):
        return None
    return mean_density(found.densities)


def summary(result: RunResult, files: dict[str, Path], expected: list[str] | None = None) -> dict[str, Any]:
    """The JSON object of `sp run --json`.

    `reasoning` is what the model thought before the answer, by the marks of its chat template.
    `keep_ratio` is the realised share of the prompt's tokens, of which the ratio asked for is the ceiling;
    `forced_tokens` were kept by constraints, whatever their scores; `full_ttft_s` and `full_answer` are None
    when the full prefill was not run; `correct` is None without a known answer. Densities are the shares of the
    causal key blocks that attention read, mean over its layers: 1 where it was dense, None without attention.
    `acceptance_length` is the tokens that a pass of the target gave, on average; None where no draft guessed.
    `window` says how a prompt that the target's window is too short for was read, and is None for all others.
    """
    full = result.full
    return {
        "answer": result.answer.text,
        "reasoning": result.answer.reasoning,
        "full_answer": full.text if full else None,
        "full_reasoning": full.reasoning if full else None,
        "correct": None if expected is None else all(value in result.answer.text for value in expected),
        "activated": result.decision.activated,
        "reason": result.decision.reason,
        "break_even_tokens": result.decision.break_even_tokens,
        "break_even_source": result.decision.break_even_source,
        "prompt_tokens": len(result.prompt),
        "kept_tokens": result.kept_tokens,
        "keep_ratio": result.kept_tokens / len(result.prompt),
        "forced_tokens": 0 if result.selection is None else int(result.selection.forced.sum()),
        "needle_recall": result.needle_recall,
        "ttft_s": result.answer.ttft_s,
        "full_ttft_s": full.ttft_s if full else None,
        "speedup": full.ttft_s / result.answer.ttft_s if full else None,
        "predicted_speedup": result.decision.predicted_speedup,
        "stages": stage_rows(result.answer),
        "full_stages": stage_rows(full) if full else None,
        "drafter_density": drafter_density(result),
        "target_density": mean_density(result.answer.densities),
        "acceptance_length": result.answer.acceptance_length,
        "peak_bytes": result.peak_bytes,
        "drafter": result.answer.trace.facts.get("drafter", []),
        "repacked": result.answer.trace.facts.get("repacked", []),
        "math": result.answer.trace.facts.get("math", []),
        "cards": result.answer.trace.facts.get("cards", []),
        "positions": result.answer.trace.facts.get("positions", []),
        "dropped": result.answer.trace.facts.get("dropped", []),
        "retrieval": result.answer.trace.facts.get("retrieval", []),
        "selection": result.answer.trace.facts.get("selection", []),
        "experts": result.answer.trace.facts.get("experts", []),
        "window": result.answer.trace.facts.get("window"),
        "residency": result.answer.trace.facts.get("residency"),
        "files": {name: str(path) for name, path in files.items()},
    }


def stage_table(result: RunResult) -> Table:
    """Stages of the compressed pass and of the full one, with seconds, tokens and share."""
    table = Table(title="Time to first token and decode, by stage", title_justify="left")
    for name, justify in (("pass", "left"), ("stage", "left"), ("seconds", "right"), ("tokens", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("share", justify="right")
    passes = [("compressed" if result.selection is not None else "full", result.answer)]
    if result.full is not None and result.full is not result.answer:
        passes.append(("full", result.full))
    for label, answer in passes:
        for row in stage_rows(answer):
            table.add_row(
                label, row["name"], f"{row['seconds']:.3f}", f"{row['tokens']:,}", f"{100 * row['share']:.1f} %"
            )
        table.add_row(label, "[b]first token after[/b]", f"[b]{answer.ttft_s:.3f}[/b]", "", "", end_section=True)
    return table


def why(result: RunResult) -> str:
    """The why-not report in one line."""
    decision = result.decision
    state = "Compression was active" if decision.activated else "Compression was not active"
    known = f"{'it' if decision.break_even_tokens else 'no prompt length'} is {decision.break_even_source} to pay"
    above = f" above about {decision.break_even_tokens:,} tokens" if decision.break_even_tokens else ""
    return f"{state}: {decision.reason}; {known}{above} at this keep ratio."


def run_trace(result: RunResult, pipeline: Pipeline, options: RunOptions, facts: dict[str, Any]) -> Trace:
    """The trace to save: facts, spans and arrays of the run."""
    trace = Trace(stages=result.answer.trace.stages, facts=dict(facts))
    trace.facts |= {
        "target": pipeline.target.describe(),
        "drafter": pipeline.drafter and pipeline.drafter.for_prompt(len(result.drafted or ())).describe(),
        "draft": pipeline.draft.describe() if pipeline.draft else None,
        "options": {
            "keep_ratio": options.keep_ratio,
            "scorer": repr(options.scorer),
            "selector": repr(options.selector),
            "compress": options.compress,
            "threshold": options.threshold,
            "positions": options.positions,
            "mapping": options.mapping,
            "mark_omitted": options.mark_omitted,
            "kv": options.kv,
            "rotate": options.rotated,
            "state_gaps": options.state_gaps,
            "target_sparse": None if options.target_sparse is None else repr(options.target_sparse),
            "decode": repr(options.decode),
            "max_new_tokens": options.max_new_tokens,
            "seed": options.seed,
        },
        "spans": [
            {"kind": span.kind, "start_byte": span.start, "end_byte": span.end} for span in result.prompt.prompt.spans
        ],
        "generated_by_drafter": list(result.importance.generated) if result.importance else [],
        "window": result.answer.trace.facts.get("window"),
        "residency": result.answer.trace.facts.get("residency"),
        "math": result.answer.trace.facts.get("math", []),
        "cards": result.answer.trace.facts.get("cards", []),
        "positions": result.answer.trace.facts.get("positions", []),
        "dropped": result.answer.trace.facts.get("dropped", []),
        "retrieval": result.answer.trace.facts.get("retrieval", []),
        "selection": result.answer.trace.facts.get("selection", []),
        "experts": result.answer.trace.facts.get("experts", []),
        "expert_choices": result.answer.trace.facts.get("expert_choices"),
        "drafter_densities": list(result.importance.densities) if result.importance else [],
        "target_densities": list(result.answer.densities),
        "tokens_by_pass": list(result.answer.passes),
    }
    trace.arrays = {"token_bytes": result.prompt.bytes, "token_ids": result.prompt.ids}
    if result.selection is not None and result.scores is not None and result.importance is not None:
        trace.arrays |= {
            "scores": result.scores,
            "drafter_scores": result.importance.scores,
            "chunk_scores": result.selection.chunk_scores,
            "kept": result.selection.kept,
            "forced": result.selection.forced,
        }
        if result.drafted is not None:
            trace.arrays["drafter_bytes"] = result.drafted.bytes
        if result.importance.by_layer is not None:
            trace.arrays["by_layer"] = result.importance.by_layer
        if result.importance.by_head is not None:
            trace.arrays["by_head"] = result.importance.by_head
    return trace


def write_files(
    result: RunResult,
    pipeline: Pipeline,
    options: RunOptions,
    folder: Path,
    facts: dict[str, Any],
    expected: list[str] | None = None,
) -> dict[str, Path]:
    """Save the page, trace, arrays and, if compression was active, the picture; no file of an earlier run stays.

    `expected` are values that a right answer holds, where they are known.
    """
    from sp.studies.figures import importance_figure, save_png
    from sp.studies.pages.run_page import run_page
    from sp.studies.written import staged

    trace = run_trace(result, pipeline, options, facts)
    page = run_page(result, summary(result, {}, expected), trace.facts, why(result))
    with staged(folder) as stage:
        json_path, arrays_path = trace.save(stage)
        files = {"report": write_atomic(stage / "report.html", page.encode())}
        files |= {"trace": json_path, "arrays": arrays_path}
        if result.selection is not None:
            files["plot"] = save_png(importance_figure(result), stage / "importance.png")
    return {name: folder / path.name for name, path in files.items()}


def memory_lines(residency: dict[str, Any] | None) -> list[str]:
    """What lay on the device at most, and who came and went; nothing for a run on the CPU."""
    if not residency:
        return []
    limit = f" of {residency['budget_bytes'] / 2**30:.1f}" if residency["budget_bytes"] else ""
    lines = [f"[b]Peak GPU memory[/b]  {residency['peak_bytes'] / 2**30:.2f}{limit} GiB"]
    for note in residency["transitions"]:
        what = f"{note['kind']} {note['name']}: {note['parts']} parts, {note['nbytes'] / 2**20:.0f} MiB"
        lines.append(f"  {note['at']:8.3f} s  {what}, {note['seconds']:.3f} s")
    return lines


def print_outcome(console: Console, report: dict[str, Any], result: RunResult, verbose: bool = False) -> None:
    """What was kept and why, and the files; last the answers and what compression gained.

    With `verbose` also what every stage took, what attention read, and memory.
    """
    if verbose:
        console.print(stage_table(result))
        for line in _details(report):
            console.print(line)
    if report["acceptance_length"] is not None:
        console.print(f"[b]Decoding[/b]  {report['acceptance_length']:.2f} tokens a pass of the target, with its draft")
    for name in NOTES:
        for line in report[name]:
            console.print(f"[b]{NOTES[name]}[/b]  {_shown(line)}")
    if report["window"]:
        console.print(f"[b]Window[/b]  {_shown(report['window'])}")
    console.print(why(result))
    paths = [Path(path) for path in report["files"].values()]
    names = ", ".join(path.name for path in paths)
    console.print(f"[b]Written to[/b] {_shown(str(paths[0].parent))}: {_shown(names)}", soft_wrap=True)
    if report["needle_recall"] is not None:
        console.print(f"[b]Needle kept[/b]  {100 * report['needle_recall']:.0f} % of its tokens")
    console.print(
        f"[b]Kept[/b]  {report['kept_tokens']:,} of {report['prompt_tokens']:,} tokens, realised keep ratio "
        f"{report['keep_ratio']:.4f}; {report['forced_tokens']:,} of them by constraint"
    )
    if report["reasoning"]:
        console.print(f"[b]Thinking[/b]  [dim]{_shown(report['reasoning'])}[/dim]")
    if report["reasoning"] and not report["answer"]:
        console.print("All tokens went into thinking; raise --max-new-tokens, or ask with --thinking off.")
    both = result.full is not None and result.full is not result.answer
    if both and result.full.reasoning:  # type: ignore[union-attr]
        console.print(f"[b]Full prefill thinks[/b]  [dim]{_shown(report['full_reasoning'])}[/dim]")
    if both:
        console.print(f"[b]Full prefill answers[/b]  {_shown(report['full_answer'])}")
    verdict = {True: " [green]right[/green]", False: " [red]wrong[/red]", None: ""}[report["correct"]]
    console.print(f"[b]Answer[/b]  {_shown(report['answer'])}{verdict}")
    against = f" against {report['full_ttft_s']:.2f} s: {report['speedup']:.1f}x" if both else ""
    console.print(f"[b]Time to first token[/b]  {report['ttft_s']:.2f} s{against}")


def _shown(text: str) -> str:
    """What strangers or models wrote, for Rich: neither its markup nor the terminal's."""
    return escape(printable(text))


NOTES = {
    "drafter": "Drafter",
    "repacked": "Re-packed",
    "math": "Products",
    "cards": "Cards",
    "experts": "Experts",
    "positions": "Positions",
    "dropped": "Dropped",
    "retrieval": "Retrieval",
    "selection": "Selection",
}
"""Lists of a report that say what should not go unsaid."""


def _details(report: dict[str, Any]) -> Iterator[str]:
    """What attention read, and memory, a line each."""
    for who in ("drafter", "target"):
        density = report[f"{who}_density"]
        if density is not None:
            how = "dense" if density == 1 else f"sparse, {100 * density:.1f} % of the causal blocks read"
            yield f"[b]Attention of the {who}[/b]  {how}"
    yield f"[b]Peak memory[/b]  {report['peak_bytes'] / 2**20:.0f} MiB"
    yield from memory_lines(report["residency"])
