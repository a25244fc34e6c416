"""sp eval turns and board: conversations, and the table of what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sp.commands.eval.run import Asked, check_writable, gather, trained_for, write_page
from sp.commands.shell.line import arg, opt
from sp.commands.shell.terminal import check_file, print_json, print_table, text_width
from sp.config import Tokens
from sp.errors import ConfigError, PromptError, unknown_name
from sp.named import read_strategies

if TYPE_CHECKING:
    from sp.evals.run import Row

MATCHED = "*"
LEGEND = """\
kept: tokens the target read, median; ttft: seconds to the first token, median;
x: times faster than full, median. * words of the question match the evidence."""
NOT_RUN = "not run: the turn did not fit the budget of device memory"


def turns(
    asked: Asked,
    lengths: Annotated[
        tuple[Tokens, ...], opt("-t", "-p", "--lengths", help="Tokens of the last prompts, comma-separated.")
    ] = (16384,),
    number: Annotated[
        int, opt("--turns", least=0, help="Turns of a transcript; one for every 3,072 tokens if 0, at most 20.")
    ] = 0,
    n: Annotated[int, opt("-n", "--n", least=1, help="Transcripts a length.")] = 4,
    ways: Annotated[str, opt("--ways", help="How the pair goes through turns, comma-separated; all if left out.")] = "",
    layout: Annotated[
        Literal["chat", "plain"], opt(help="chat: messages of the chat template; plain: one document and a question.")
    ] = "chat",
) -> None:
    """Ask about the results of an agent's tools, new and old: what going through the turns in some way costs and keeps.

    Ways: full reads the whole transcript anew at every turn, prefix what is new of it, cold compresses it anew;
    conversation compresses what is new and keeps what was kept, recall also brings back what was left out. Before a
    question the transcript has the right answers of the turns before it. Questions are about the newest result, an
    old one, two of them, a value that later results update, or a fact by its own name. Rows that --out holds already
    are not made again.

    Examples
    --------
      sp eval turns -t 16k -n 4
      sp eval turns -t 128k --turns 20 -n 10 --scorer 'tail[queries=24]' --keep-ratio 0.1,0.2 --out turns.jsonl
    """
    from sp.evals.run import check_example, counter
    from sp.evals.transcripts.turns import Turns
    from sp.evals.turns.ways import WAYS, TurnsRun, known_rows, rounds, summarise_turns
    from sp.studies.pages.study_page import TURNS, lines_page

    chosen = [one.strip() for one in ways.split(",")] if ways else list(WAYS)
    for way in chosen:
        if way not in WAYS:
            raise unknown_name("way", way, WAYS)
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"--ways names a way twice: {ways}")
    task = Turns(seed=asked.seed, turns=number, layout=layout)
    cells = asked.cells(task.name)
    check_writable(asked.out)
    models = asked.facts() if asked.out else {}
    done = known_rows(asked.out, models) if asked.out else {}
    pipeline = asked.open(cells)
    count = counter(pipeline.target.tokenizer)
    work = TurnsRun(pipeline, rounds(chosen, cells), layout, asked.thinking)
    for one in work.rounds:
        for _, cell in one.cells:
            WAYS[one.way].check(pipeline, cell)
    firsts = [task.transcript(0, tokens, count) for tokens in lengths]  # what has no room is told before anything runs
    try:
        shown = firsts[0].example(firsts[0].questions[0], count, layout)
        shown.prompt(pipeline.target.template, asked.thinking, pipeline.target.tokenizer)
    except PromptError as error:  # no template, or one that shows no results of tools
        raise PromptError(f"{error}; or take --layout plain") from None
    for first in firsts:
        check_example(pipeline, first.example(first.questions[-1], count, layout), asked.thinking)
    before: list[Row] = []
    wanted = 0

    def measure(*, progress: Any) -> Iterator[Row]:
        nonlocal wanted
        for tokens, index in product(lengths, range(n)):
            one = task.transcript(index, tokens, count)
            keys = work.all_keys(one, count)
            wanted += len(keys)
            before.extend(done[key] for key in keys if key in done)
            yield from work.rows(one, count, done, progress)

    fresh = gather(measure, n * sum(work.total(len(one.questions)) for one in firsts), asked.out, models)
    if before:
        print(f"sp: {len(before)} of {wanted} rows were in {asked.out} already", file=sys.stderr)
    lines = summarise_turns([*before, *fresh])
    if asked.out:
        write_page(asked.out, lines_page(f"sp eval turns: {asked.out.name}", lines, TURNS, trained_for(pipeline)))
    if asked.as_json:
        print_json({"results": lines})
    else:
        show(lines, pipeline.drafter.path if pipeline.drafter else None, asked.wide)


def show(lines: list[dict[str, Any]], drafter: Any, wide: bool = False) -> None:
    """A table for each length."""
    from sp.evals.trained_for import note_of_file

    for tokens in dict.fromkeys(line["tokens_asked"] for line in lines):
        cells: list[tuple[str, ...]] = []
        last = None
        for line in (one for one in lines if one["tokens_asked"] == tokens):
            name = called(line)
            cells.append((name if name != last else "", *figures(line)))
            last = name
        print(f"transcripts of {tokens:,} tokens")
        print_table(["way", "kind", "keep", "n", "right", "95 %", "kept", "ttft", "x"], cells, "table", 2, wide=wide)
    print(LEGEND)
    if any(line["not_run"] for line in lines):
        print(NOT_RUN)
    if drafter and (note := note_of_file(drafter)):
        print(fill(note, text_width()))


def called(line: dict[str, Any]) -> str:
    """A way with its scorer and, if it is not the usual one, selector."""
    parts = [line["way"]]
    if line["scorer"] != "full":
        parts += [line["scorer"], *([line["selector"]] if line["selector"] != "top_chunks" else [])]
    return " ".join(parts)


def figures(line: dict[str, Any]) -> tuple[str, ...]:
    """All of a line but its name."""

    def told(name: str, pattern: str) -> str:
        return pattern.format(line[name]) if line.get(name) is not None else "-"

    mark = MATCHED if line["words_match"] else ""
    amount = f"{line['n']}" + (f" (-{line['not_run']})" if line["not_run"] else "")
    bounds = f"{100 * line['low']:.0f}-{100 * line['high']:.0f}" if "low" in line else "-"
    return (
        f"{line['kind']}{mark}",
        told("keep_ratio", "{:g}"),
        amount,
        told("accuracy", "{:.0%}"),
        bounds,
        told("kept_tokens", "{:,.0f}"),
        told("ttft_s", "{:.2f}"),
        told("speedup", "{:.1f}"),
    )


USUAL = "tail[queries=24]"  # held against where records have it


def board(
    paths: Annotated[list[Path], arg("Files or folders of sp sweep and sp eval --out.")],
    out: Annotated[Path | None, opt("-o", "--out", help="Markdown page to write.")] = None,
    html: Annotated[Path | None, opt("--html", help="HTML page to write; it needs nothing else.")] = None,
    against: Annotated[
        str | None,
        opt(help="Scorer that the Markdown page holds all others against; tail[queries=24] if left out."),
    ] = None,
) -> None:
    """Write the leaderboard: every scorer by task, length and keep ratio, against full prefill and oracle.

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
        raise ConfigError("name a page to write: -o leaderboard.md, --html leaderboard.html, or both")
    for path, option in ((out, "--out"), (html, "--html")):
        check_file(path, option)
    named = read_strategies(USUAL if against is None else against, SCORERS, "--against")
    if len(named) > 1:
        raise ConfigError(f"--against takes one scorer here, not {against!r}")
    reference = label(SCORERS, named[0])
    found = read_board(paths)
    there = list(dict.fromkeys(entry.scorer for entry in found.entries if entry.kind != "full"))
    if against is not None and reference not in there:
        raise ConfigError(f"--against: no row of scorer {reference} in these records; they have {', '.join(there)}")
    pages = {path: text for path, text in ((out, as_markdown(found, reference)), (html, as_html(found))) if path}
    for path, text in pages.items():
        print(f"{len(found.entries):,} entries in {write_atomic(path, text.encode())}")
