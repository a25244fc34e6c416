"""`sp eval turns`: policies for conversations; `sp eval board`: the leaderboard of all rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sp.commands.eval.run import EvalOptions, gather, trained_for, write_page
from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import print_json, print_table, text_width
from sp.config import Tokens
from sp.errors import ConfigError, PromptError, unknown_name
from sp.named import read_strategies

if TYPE_CHECKING:
    from sp.evals.run import Row

MATCHED = "*"
LEGEND = """\
kept: tokens read by the target, median; ttft: seconds to first token, median;
x: speedup over full, median. * words of the question match the evidence."""
NOT_RUN = "not run: the turn exceeded the budget of device memory"


def turns(
    evaluation: EvalOptions,
    lengths: Annotated[
        tuple[Tokens, ...], opt("-t", "-p", "--lengths", help="Tokens of the last prompt, comma-separated.")
    ] = (16384,),
    number: Annotated[
        int, opt("--turns", least=0, help="Turns per transcript; with 0 one per 3,072 tokens, at most 20.")
    ] = 0,
    n: Annotated[int, opt("-n", "--n", least=1, help="Transcripts per length.")] = 4,
    ways: Annotated[str, opt("--ways", help="Policies for turns, see above, comma-separated; all if omitted.")] = "",
    layout: Annotated[
        Literal["chat", "plain"], opt(help="chat: messages of the chat template; plain: one document and a question.")
    ] = "chat",
) -> None:
    """Ask about new and old results of an agent's tools, and compare the cost and accuracy of policies for turns.

    Policies (ways): full reads the whole transcript at every turn; prefix reads only its new part; cold compresses the
    whole transcript at every turn; conversation compresses only the new part and keeps earlier selections; recall also
    restores omitted text. The transcript before a question contains the right answers to earlier ones. Questions are
    about the newest result, an old one, two of them, a value that later results update, or a fact by its own name.
    Rows that --out has already are not computed again.

    Examples
    --------
      sp eval turns -t 16k -n 4
      sp eval turns -t 128k --turns 20 -n 10 --scorer 'tail[queries=24]' --keep-ratio 0.1,0.2 --out turns.jsonl
    """
    from sp.evals.run import check_example, counter
    from sp.evals.transcripts.turns import Turns
    from sp.evals.turns.ways import WAYS, TurnsRun, known_rows, rounds, summarise_turns
    from sp.studies.pages.study_page import TURNS, lines_page

    chosen = [way.strip() for way in ways.split(",")] if ways else list(WAYS)
    for way in chosen:
        if way not in WAYS:
            raise unknown_name("way", way, WAYS)
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"--ways {ways}: a policy is named twice; name it once")
    task = Turns(seed=evaluation.seed, turns=number, layout=layout)
    cells = evaluation.cells(task.name)
    models = evaluation.facts() if evaluation.out else {}
    done = known_rows(evaluation.out, models) if evaluation.out else {}
    pipeline = evaluation.open(cells)
    count = counter(pipeline.target.tokenizer)
    work = TurnsRun(pipeline, rounds(chosen, cells), layout, evaluation.thinking)
    for round_ in work.rounds:
        for _, cell in round_.cells:
            WAYS[round_.way].check(pipeline, cell)
    firsts = [task.transcript(0, tokens, count) for tokens in lengths]  # too short a length is an error before any run
    try:
        example = firsts[0].example(firsts[0].questions[0], count, layout)
        example.prompt(pipeline.target.template, evaluation.thinking, pipeline.target.tokenizer)
    except PromptError as error:  # no template, or one without results of tools
        raise PromptError(f"{error}; or use --layout plain") from None
    for first in firsts:
        check_example(pipeline, first.example(first.questions[-1], count, layout), evaluation.thinking)
    before: list[Row] = []
    total = 0

    def measure(*, progress: Any) -> Iterator[Row]:
        nonlocal total
        for tokens, index in product(lengths, range(n)):
            transcript = task.transcript(index, tokens, count)
            keys = work.all_keys(transcript, count)
            total += len(keys)
            before.extend(done[key] for key in keys if key in done)
            yield from work.rows(transcript, count, done, progress)

    fresh = gather(measure, n * sum(work.total(len(first.questions)) for first in firsts), evaluation.out, models)
    if before:
        print(f"sp: {len(before)} of {total} rows were in {evaluation.out} already", file=sys.stderr)
    lines = summarise_turns([*before, *fresh])
    if evaluation.out:
        write_page(
            evaluation.out, lines_page(f"sp eval turns: {evaluation.out.name}", lines, TURNS, trained_for(pipeline))
        )
    if evaluation.as_json:
        print_json({"results": lines})
    else:
        show(lines, pipeline.drafter.path if pipeline.drafter else None, evaluation.wide)


def show(lines: list[dict[str, Any]], drafter: Any, wide: bool = False) -> None:
    """Print a table for each length."""
    from sp.evals.trained_for import note_of_file

    for tokens in dict.fromkeys(line["tokens_asked"] for line in lines):
        cells: list[tuple[str, ...]] = []
        last = None
        for line in (line for line in lines if line["tokens_asked"] == tokens):
            name = policy_name(line)
            cells.append((name if name != last else "", *figures(line)))
            last = name
        print(f"transcripts of {tokens:,} tokens")
        print_table(["way", "kind", "keep", "n", "right", "95 %", "kept", "ttft", "x"], cells, "table", 2, wide=wide)
    print(LEGEND)
    if any(line["not_run"] for line in lines):
        print(NOT_RUN)
    if drafter and (note := note_of_file(drafter)):
        print(fill(note, text_width()))


def policy_name(line: dict[str, Any]) -> str:
    """Return the name of a policy with its scorer and, unless it is the default, its selector."""
    parts = [line["way"]]
    if line["scorer"] != "full":
        parts += [line["scorer"], *([line["selector"]] if line["selector"] != "top_chunks" else [])]
    return " ".join(parts)


def figures(line: dict[str, Any]) -> tuple[str, ...]:
    """Format the columns of a line after its name."""

    def value(name: str, pattern: str) -> str:
        return pattern.format(line[name]) if line.get(name) is not None else "-"

    mark = MATCHED if line["words_match"] else ""
    amount = f"{line['n']}" + (f" (-{line['not_run']})" if line["not_run"] else "")
    bounds = f"{100 * line['low']:.0f}-{100 * line['high']:.0f}" if "low" in line else "-"
    return (
        f"{line['kind']}{mark}",
        value("keep_ratio", "{:g}"),
        amount,
        value("accuracy", "{:.0%}"),
        bounds,
        value("kept_tokens", "{:,.0f}"),
        value("ttft_s", "{:.2f}"),
        value("speedup", "{:.1f}"),
    )


USUAL = "tail[queries=24]"  # reference of comparisons by default, if records have it


def board(
    paths: Annotated[list[Path], arg("Files or folders of sp sweep and sp eval --out.")],
    out: Annotated[Path | None, opt("-o", "--out", writes="file", help="Markdown page to write.")] = None,
    html: Annotated[Path | None, opt("--html", writes="file", help="Self-contained HTML page to write.")] = None,
    against: Annotated[
        str | None,
        opt(help="Reference scorer of the comparisons in the Markdown page; tail[queries=24] if omitted."),
    ] = None,
) -> None:
    """Write the leaderboard: every scorer by task, length and keep ratio, compared with full prefill and oracle.

    Examples
    --------
      sp eval board sp-sweep/leaderboard -o docs/leaderboard.md --html docs/leaderboard.html
      sp eval board rows.jsonl discriminates.jsonl -o leaderboard.md
    """
    from sp.evals.run import label
    from sp.scoring import SCORERS
    from sp.studies.board.entries import read_board
    from sp.studies.board.html import as_html, as_markdown
    from sp.trace import write_atomic

    if out is None and html is None:
        raise ConfigError("nothing would be written; pass -o leaderboard.md, --html leaderboard.html, or both")
    named = read_strategies(USUAL if against is None else against, SCORERS, "--against")
    if len(named) > 1:
        raise ConfigError(f"--against takes one scorer, not {against!r}")
    reference = label(SCORERS, named[0])
    leaderboard = read_board(paths)
    known = list(dict.fromkeys(entry.scorer for entry in leaderboard.entries if entry.kind != "full"))
    if against is not None and reference not in known:
        raise ConfigError(f"--against: these records have no row of scorer {reference}, only of {', '.join(known)}")
    texts = (out, as_markdown(leaderboard, reference)), (html, as_html(leaderboard))
    for path, text in {path: text for path, text in texts if path}.items():
        print(f"{len(leaderboard.entries):,} entries in {write_atomic(path, text.encode())}")
