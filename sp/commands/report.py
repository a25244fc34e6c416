"""`sp report`: tables and pictures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    paths: Annotated[list[Path], typer.Argument(help="Files or folders of sp sweep, sp bench --record and sp run.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the page and its pictures.")] = Path("sp-report"),
) -> None:
    """Write report.md with tables, cells.csv, and pictures fit for a paper.

    [bold]Examples[/bold]

      sp report sp-sweep/quickstart -o report

      sp report results/nvidia-h200/study sp-run -o report
    """
    from sp.studies.report import write_report

    print(f"report in {write_report(paths, out)}")
