"""`sp eval board`: the leaderboard of records, as Markdown and as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sp.commands.line import arg, opt
from sp.commands.terminal import check_file
from sp.errors import ConfigError
from sp.named import read_strategies

USUAL = "tail[queries=24]"
"""Held against where records have it."""


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
