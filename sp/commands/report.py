"""`sp report`: tables and plots of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from sp.commands.shell.parser import arg, opt


def report(
    paths: Annotated[list[Path], arg("Files or folders of sp sweep, sp bench --record, sp run and sp chat --out.")],
    out: Annotated[
        Path | None, opt("-o", "--out", writes="folder", help="Folder for the page and its pictures; else sp-report.")
    ] = None,
    pages: Annotated[
        list[Path] | None,
        opt(help="Page or folder of pages, whose marked tables are updated from the records; writes no report."),
    ] = None,
    times: Annotated[bool, opt(help="Show times of sweeps; pass --no-times if runs shared a device.")] = True,
    picture: Annotated[
        Literal["png", "pdf", "svg"], opt("--format", help="Format of the pictures; pdf and svg are for papers.")
    ] = "png",
) -> None:
    """Write report.md with tables, report.html with sortable ones, cells.csv, and plots for papers.

    Examples
    --------
      sp report sp-sweep/quickstart -o report
      sp report results/nvidia-h200/study sp-run -o report
      sp report sp-sweep/quickstart -o paper --format pdf
      sp report results/nvidia-h200 --pages README.md --pages docs
    """
    from sp.studies.pages.report import write_pages, write_report

    if pages:
        print(f"tables in {', '.join(map(str, write_pages(paths, pages)))}")
        return
    print(f"report in {write_report(paths, out or Path('sp-report'), times, picture)}")
