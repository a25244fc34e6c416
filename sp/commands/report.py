"""`sp report`: tables and pictures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sp.commands.terminal import check_folder


def report(
    paths: Annotated[
        list[Path], typer.Argument(help="Files or folders of sp sweep, sp bench --record, sp run and sp chat --out.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the page and its pictures.")] = Path("sp-report"),
    readme: Annotated[
        Path | None,
        typer.Option(help="Put the tables made from records between their marks in this page; no report."),
    ] = None,
    times: Annotated[bool, typer.Option(help="Show times of sweeps; leave them out if runs shared a device.")] = True,
) -> None:
    """Write report.md with tables, cells.csv, and pictures fit for a paper.

    [bold]Examples[/bold]

      sp report sp-sweep/quickstart -o report

      sp report results/nvidia-h200/study sp-run -o report

      sp report results/nvidia-h200 --readme README.md
    """
    from sp.studies.pages.report import write_page, write_report

    check_folder(out if readme is None else None, "--out")
    if readme is not None:
        print(f"tables in {write_page(paths, readme)}")
        return
    print(f"report in {write_report(paths, out, times)}")
