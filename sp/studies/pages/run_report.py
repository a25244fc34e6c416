"""Report of one run: tables for the terminal, a JSON object, an HTML page and a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from sp.columns import ColumnTable
from sp.errors import printable
from sp.page.heat import HeatMap, Place, overview
from sp.page.markup import Cell, Html, asset, facts, join, page, sortable, tag
from sp.prompt.heat import LEVELS
from sp.session import Answer, Pipeline, RunOptions, RunResult
from sp.session.compress import positions_for
from sp.trace import Trace, write_atomic


def stage_rows(answer: Answer) -> list[dict[str, Any]]:
    """Return the stages of a pass with their shares of its total."""
    total = answer.trace.seconds or 1.0  # a trace without stages has no seconds to divide by
    return [{**stage.as_dict(), "share": stage.seconds / total} for stage in answer.trace.stages]


def passes(result: RunResult) -> list[tuple[str, Answer]]:
    """Return the answer with the name of its pass, and that of the full prefill if both were run."""
    both = result.full is not None and result.full is not result.answer
    answers = [("compressed" if result.selection is not None else "full", result.answer)]
    return [*answers, ("full", result.full)] if both else answers  # type: ignore[list-item]


def mean_density(densities: tuple[float, ...]) -> float:
    """Return the mean over layers; 1 without densities, as dense attention records none."""
    return sum(densities) / len(densities) if densities else 1.0


def drafter_density(result: RunResult) -> float | None:
    """Return the mean density of the drafter's attention; None if no attention was recorded."""
    importance = result.importance
    if importance is None or (importance.by_layer is None and not importance.densities):
        return None
    return mean_density(importance.densities)


def summary(result: RunResult, files: dict[str, Path], expected: list[str] | None = None) -> dict[str, Any]:
    """Return the JSON object of `sp run --json`.

    `reasoning` is the thinking before the answer, by the marks of the chat template. `keep_ratio` is the realised
    share of the prompt's tokens, which may be below that of the options; `forced_tokens` were kept by constraints,
    whatever their scores. Values whose names begin with `full_` are of the full prefill, and None if it was not run;
    `correct` is None without a known answer. Densities are the shares of the causal key blocks that attention read (by
    a skip rule, of the tiles whose values it read), mean over layers: 1 if it was dense, None without attention.
    `acceptance_length` is the mean number of tokens per pass of the target; None without speculative decoding. `window`
    says how a prompt longer than the target's window was read; None for all others.
    """
    full, facts = result.full, result.answer.trace.facts
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
        "full_target_density": mean_density(full.densities) if full else None,
        "acceptance_length": result.answer.acceptance_length,
        "peak_bytes": result.peak_bytes,
        **{name: facts.get(name, []) for name in NOTES},
        "window": facts.get("window"),
        "residency": facts.get("residency"),
        "files": {name: str(path) for name, path in files.items()},
    }


def stage_table(result: RunResult) -> ColumnTable:
    """Return the stages of the compressed pass and of the full one, with seconds, tokens and share."""
    table = ColumnTable(["pass", "stage", "seconds", "tokens", "share"], [], text_columns=2, head_style="bold")
    for label, answer in passes(result):
        for row in stage_rows(answer):
            table.add_row(
                label, row["name"], f"{row['seconds']:.3f}", f"{row['tokens']:,}", f"{100 * row['share']:.1f} %"
            )
        table.add_row(label, Text("first token after", "bold"), Text(f"{answer.ttft_s:.3f}", "bold"), "", "")
    return table


def why(result: RunResult) -> str:
    """Return a line on why compression was or was not active, and from which length it is expected to be faster."""
    decision = result.decision
    state = "Compression was active" if decision.activated else "Compression was not active"
    outlook = f"{'it' if decision.break_even_tokens else 'no prompt length'} is {decision.break_even_source} to pay"
    above = f" above about {decision.break_even_tokens:,} tokens" if decision.break_even_tokens else ""
    return f"{state}: {decision.reason}; {outlook}{above} at this keep ratio."


def run_trace(result: RunResult, pipeline: Pipeline, options: RunOptions, facts: dict[str, Any]) -> Trace:
    """Return the trace to save: stages, facts, spans and arrays of the run."""
    run_facts = result.answer.trace.facts
    used = result.options or options  # a prompt over the window has other positions than the options say
    decided = {"rotate": options.rotated, "positions": positions_for(used, pipeline.target.model.config)}
    trace = Trace(stages=result.answer.trace.stages, facts=dict(facts))
    trace.facts |= {
        "target": pipeline.target.describe(),
        "drafter": pipeline.drafter and pipeline.drafter.for_prompt(len(result.drafted or ())).describe(),
        "draft": pipeline.speculator.describe() if pipeline.speculator else None,
        "options": {
            name: value if isinstance(value, str | int | float | None) else repr(value)
            for name, value in (vars(options) | decided).items()
            if name != "sparse"  # the target's is in target_sparse, the drafter's in the scorer
        },
        "spans": [
            {"kind": span.kind, "start_byte": span.start, "end_byte": span.end} for span in result.prompt.prompt.spans
        ],
        "generated_by_drafter": list(result.importance.generated) if result.importance else [],
        "window": run_facts.get("window"),
        "residency": run_facts.get("residency"),
        **{name: run_facts.get(name, []) for name in NOTES if name not in ("drafter", "repacked")},
        "expert_choices": run_facts.get("expert_choices"),
        "drafter_densities": list(result.importance.densities) if result.importance else [],
        "target_densities": list(result.answer.densities),
        "full_target_densities": list(result.full.densities) if result.full else [],
        "tokens_by_pass": list(result.answer.passes),
    }
    trace.arrays = {"token_bytes": result.prompt.bytes, "token_ids": result.prompt.ids}
    if result.selection is not None and result.scores is not None and result.importance is not None:
        trace.arrays |= {
            "scores": result.scores,
            "drafter_scores": result.importance.scores,
            "chunk_scores": result.selection.chunk_scores,
            "kept": result.selection.selected,
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
    """Save the page, trace, arrays and, if compression was active, the picture; files of an earlier run are removed.

    `expected` are the values of a correct answer, if they are known. Returns the paths by kind.
    """
    from sp.studies.figures import importance_figure, save_figure
    from sp.studies.staging import staged

    trace = run_trace(result, pipeline, options, facts)
    page = run_page(result, summary(result, {}, expected), trace.facts, why(result))
    with staged(folder) as stage:
        json_path, arrays_path = trace.save(stage)
        files = {"report": write_atomic(stage / "report.html", page.encode())}
        files |= {"trace": json_path, "arrays": arrays_path}
        if result.selection is not None:
            files["plot"] = save_figure(importance_figure(result), stage / "importance.png")
    return {name: folder / path.name for name, path in files.items()}


def memory_lines(residency: dict[str, Any] | None) -> list[str]:
    """Return lines on peak GPU memory, and on offloaded and onloaded models; empty for a run on the CPU."""
    if not residency:
        return []
    limit = f" of {residency['budget_bytes'] / 2**30:.1f}" if residency["budget_bytes"] else ""
    lines = [f"[b]Peak GPU memory[/b]  {residency['peak_bytes'] / 2**30:.2f}{limit} GiB"]
    for note in residency["transitions"]:
        move = f"{note['kind']} {note['name']}: {note['parts']} parts, {note['nbytes'] / 2**20:.0f} MiB"
        lines.append(f"  {note['at']:8.3f} s  {move}, {note['seconds']:.3f} s")
    return lines


def print_outcome(console: Console, report: dict[str, Any], result: RunResult, verbose: bool = False) -> None:
    """Print the notes of a run, the decision, the files, the kept tokens, the answers and the times.

    If `verbose`, also print the seconds of every stage, densities of attention, and memory.
    """
    if verbose:
        console.print("[b]Time to first token and decode, by stage[/b]")
        console.print(stage_table(result))
        for line in _details(report):
            console.print(line)
    if report["acceptance_length"] is not None:
        console.print(
            f"[b]Decoding[/b]  {report['acceptance_length']:.2f} tokens per pass of the target, with its draft"
        )
    for name in NOTES:
        for line in report[name]:
            console.print(f"[b]{NOTES[name]}[/b]  {_safe(line)}")
    if report["window"]:
        console.print(f"[b]Window[/b]  {_safe(report['window'])}")
    console.print(why(result))
    paths = [Path(path) for path in report["files"].values()]
    names = ", ".join(path.name for path in paths)
    console.print(f"[b]Written to[/b] {_safe(str(paths[0].parent))}: {_safe(names)}", soft_wrap=True)
    if report["needle_recall"] is not None:
        console.print(f"[b]Needle kept[/b]  {100 * report['needle_recall']:.0f} % of its tokens")
    console.print(
        f"[b]Kept[/b]  {report['kept_tokens']:,} of {report['prompt_tokens']:,} tokens, realised keep ratio "
        f"{report['keep_ratio']:.4f}; {report['forced_tokens']:,} of them by constraint"
    )
    if report["reasoning"]:
        console.print(f"[b]Thinking[/b]  [dim]{_safe(report['reasoning'])}[/dim]")
    if report["reasoning"] and not report["answer"]:
        console.print("All tokens went into thinking; raise --max-new-tokens, or use --thinking off.")
    both = len(passes(result)) > 1
    if both and result.full.reasoning:  # type: ignore[union-attr]
        console.print(f"[b]Full prefill thinks[/b]  [dim]{_safe(report['full_reasoning'])}[/dim]")
    if both:
        console.print(f"[b]Full prefill answers[/b]  {_safe(report['full_answer'])}")
    verdict = {True: " [green]right[/green]", False: " [red]wrong[/red]", None: ""}[report["correct"]]
    console.print(f"[b]Answer[/b]  {_safe(report['answer'])}{verdict}")
    against = f" against {report['full_ttft_s']:.2f} s: {report['speedup']:.1f}x" if both else ""
    console.print(f"[b]Time to first token[/b]  {report['ttft_s']:.2f} s{against}")


def _safe(text: str) -> str:
    """Escape text that is not ours for Rich, so that it has neither its markup nor terminal controls."""
    return escape(printable(text))


NOTES = {
    "drafter": "Drafter",
    "repacked": "Re-packed",
    "math": "Products",
    "cards": "GPUs",
    "experts": "Experts",
    "positions": "Positions",
    "dropped": "Dropped",
    "retrieval": "Retrieval",
    "launches": "Launches",
    "selection": "Selection",
}  # keys of a report's lists of notes, with their titles


READINGS = {
    "drafter_density": "drafter",
    "target_density": "target",
    "full_target_density": "target, full prefill",
}  # keys of a report's densities, with who read


def _attention(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, reader in READINGS.items():
        density = report[key]
        one_pass = key.startswith("full_") and not report["activated"]  # the line before is that of the full prefill
        if density is not None and not one_pass:
            rule = "dense" if density == 1 else f"sparse, {100 * density:.1f} % of the causal blocks read"
            yield f"Attention of the {reader}", rule


def _details(report: dict[str, Any]) -> Iterator[str]:
    yield from (f"[b]{name}[/b]  {rule}" for name, rule in _attention(report))
    yield f"[b]Peak memory[/b]  {report['peak_bytes'] / 2**20:.0f} MiB"
    yield from memory_lines(report["residency"])


LONGEST = 160  # characters of a needle in the list of needles
STRIP = "The whole prompt; a needle that was left out, fully or in part, is hollow. Click to go there."
STRIP_ROWS = ("importance", "share kept", "needles, question")


def run_page(result: RunResult, report: Mapping[str, Any], trace_facts: Mapping[str, Any], why: str) -> str:
    """Return the HTML page of a run; all text that is not ours is escaped.

    `report` is the object of `sp run --json`, `trace_facts` are the facts of the trace, `why` is the line on why
    compression was or was not active.
    """
    selected = None if result.selection is None else result.selection.selected
    heated = HeatMap.of(result.prompt, selected, result.scores)
    return page(
        f"sp run: {trace_facts.get('question') or 'a prompt'}"[:80],
        tag("main",
            tag("h1", trace_facts.get("question") or "A prompt"),
            _answers(result, report),
            tag("p", why, id="why"),
            _figures(report),
            tag("h2", "Tokens"), *_tokens(heated, result),
            tag("h2", "Times"), _times(result),
            tag("h2", "Settings"), _settings(trace_facts, report)),
        styles=(asset("heat.css"), asset("run.css", __package__)),
        scripts=(asset("heat.js"), asset("sort.js")),
    )  # fmt: skip


def _answers(result: RunResult, report: Mapping[str, Any]) -> Html:
    sections = [_answer("Full prefill" if result.selection is None else "Compressed", report, "")]
    if result.full is not None and result.full is not result.answer:
        sections.append(_answer("Full prefill", report, "full_"))
    gain = report["speedup"] if len(sections) > 1 else None
    faster = tag("p", tag("b", f"{gain:.1f}x"), " as fast to the first token as the full prefill") if gain else ""
    return join([tag("div", *sections, class_="answers"), faster])


def _answer(title: str, report: Mapping[str, Any], prefix: str) -> Html:
    text, thought, correct = report[f"{prefix}answer"], report[f"{prefix}reasoning"], report["correct"]
    verdict = ""
    if correct is not None and not prefix:
        verdict = tag("span", " right" if correct else " wrong", class_="good" if correct else "bad")
    thinking = tag("details", tag("summary", "Thinking"), tag("pre", thought, class_="answer")) if thought else ""
    seconds = f"first token after {report[f'{prefix}ttft_s']:.2f} s"
    return tag("section", tag("h2", title, verdict), thinking,
               tag("p", text or "(nothing)", class_="answer", dir="auto"), tag("small", seconds))  # fmt: skip


def _figures(report: Mapping[str, Any]) -> Html:
    share = f"{100 * report['keep_ratio']:.1f} %"
    figures: list[tuple[str, object]] = [
        ("Kept", f"{report['kept_tokens']:,} of {report['prompt_tokens']:,} tokens, {share}"),
        ("By constraint", f"{report['forced_tokens']:,} of them, whatever their scores"),
    ]
    if report["needle_recall"] is not None:
        figures.append(("Needle kept", f"{100 * report['needle_recall']:.0f} % of its tokens"))
    if report["acceptance_length"] is not None:
        figures.append(("Decoding", f"{report['acceptance_length']:.2f} tokens per pass of the target"))
    return facts([*figures, *_attention(report), ("Peak memory", f"{report['peak_bytes'] / 2**20:,.0f} MiB")])


def _tokens(heated: HeatMap, result: RunResult) -> Sequence[Html]:
    places = heated.places()
    row_names = tag("div", *(tag("span", name) for name in STRIP_ROWS), class_="rows", aria_hidden="true")
    parts = [_legend(result), tag("p", STRIP, class_="note"), tag("div", row_names, overview(heated), class_="along")]
    parts += [_places(heated, places)] if places else []
    parts += [_tools(result), tag("div", heated.markup(), class_="whole" if result.selection is None else None)]
    return parts


def _legend(result: RunResult) -> Html:
    if result.selection is None:
        return tag("p", "All of the prompt was read; nothing was scored.", class_="note")
    levels = join(tag("i", f" {100 * share:g} % ", class_=f"h{level}") for level, share in enumerate(LEVELS, 1))
    kinds = (("kept", "kept"), ("dropped", "left out"), ("question", "question, kept"), ("needle", "needle, kept"),
             ("lost", "needle, left out"))  # fmt: skip
    labels = join(tag("span", name, class_=kind) for kind, name in kinds)
    return tag("p", "More important than ", levels, "of the tokens.", tag("br"), labels, class_="legend")


def _places(heated: HeatMap, places: Sequence[Place]) -> Html:
    rows = []
    for place in places:
        text = " ".join(heated.text(place.start, place.end)[: 2 * LONGEST].split())
        text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        name = tag("a", place.name.replace("-", " "), href=f"#{place.name}")
        share = f"{100 * place.kept_share:.0f} %"
        rows.append([Cell(name, place.start), Cell(text, text), Cell(f"{place.start:,}", place.start),
                     Cell(share, place.kept_share)])  # fmt: skip
    return sortable("Needles and question", ["where", "text", "token", "kept"], rows, ["text"])


def _tools(result: RunResult) -> Html:
    if result.selection is None:
        return Html("")
    return tag("div",
        tag("button", "previous kept piece", type="button", data_step=-1),
        tag("button", "next kept piece", type="button", data_step=1),
        tag("label", tag("input", type="checkbox", id="only"), " only what was kept"),
        tag("label", tag("input", type="checkbox", id="plain"), " without heat"),
        class_="tools",
    )  # fmt: skip


def _times(result: RunResult) -> Html:
    both = passes(result)
    # All bars have one scale: the longest stage of either pass is 100 units of the view box.
    most = max((stage.seconds for _, answer in both for stage in answer.trace.stages), default=0) or 1.0
    rows = []
    for label, answer in both:
        total = answer.trace.seconds or 1.0
        for stage in answer.trace.stages:
            bar = tag("svg", tag("rect", width=f"{100 * stage.seconds / most:.2f}", height=10),
                      viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")  # fmt: skip
            rows.append([
                Cell(label, label), Cell(stage.name, stage.name), Cell(f"{stage.seconds:.3f}", stage.seconds),
                Cell(tag("div", bar, class_="took"), stage.seconds), Cell(f"{stage.tokens:,}", stage.tokens),
                Cell(f"{100 * stage.seconds / total:.1f} %", stage.seconds / total),
            ])  # fmt: skip
    return sortable("Stages", ["pass", "stage", "seconds", "on one scale", "tokens", "share"], rows, ["stage"])


def _settings(trace_facts: Mapping[str, Any], report: Mapping[str, Any]) -> Html:
    settings: list[tuple[str, object]] = [
        (name, _value_text(value)) for name, value in trace_facts.get("options", {}).items()
    ]
    for role in ("target", "drafter", "draft"):
        described = trace_facts.get(role)
        if described:
            details = facts([(name, _value_text(value)) for name, value in described.items()])
            settings.append((role, tag("details", tag("summary", described.get("file") or role), details)))
    for name in ("window", *NOTES):
        if value := report.get(name):
            settings.append((name, value if isinstance(value, str) else "; ".join(map(str, value))))
    return join([facts(settings), tag("p", f"Written by sp {trace_facts.get('sp', '')}", class_="note")])


def _value_text(value: object) -> str:
    return "none" if value is None else "yes" if value is True else "no" if value is False else str(value)
