"""Tables on stdout: what stands in a cell is shown as it is, and what is alike in all rows stands above them."""

from __future__ import annotations

import pytest

from sp.commands.shell.terminal import print_table


@pytest.mark.parametrize("output", ["table", "md"])
def test_brackets_are_text(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["model [GB]", "tok/s"], [["tiny[v2]", "8.5"], ["[bold]", "10.25"]], output, 1)
    shown = capsys.readouterr().out
    for piece in ("model [GB]", "tiny[v2]", "[bold]", "10.25"):
        assert piece in shown


def test_a_narrow_terminal_cuts_no_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a line has no room for stands below, beside the same names."""
    monkeypatch.setenv("COLUMNS", "60")
    heads = ["task", "scorer", *(f"head {number}" for number in range(9))]
    cells = [["needle", "probe weights=scorers/probe.safetensors", *(f"{number}.{'0' * 7}" for number in range(9))]]
    print_table(heads, cells, "table", 2)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 60
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert all(text in shown for text in (*heads[2:], *cells[0][2:]))
    assert shown.count("needle") == shown.count("scorer ") > 1, "every table has its names"


def test_a_narrow_terminal_gets_what_matters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns that are alike are told once, of the others the main ones are shown; --wide shows all."""
    monkeypatch.setenv("COLUMNS", "40")
    heads = ["task", "scorer", "right", "95 %", "margin", "95 %", "seconds"]
    cells = [["needle", scorer, "50 %", "40 to 60", "1.25", "1.00 to 1.50", "12.345"] for scorer in ("tail", "bm25")]
    main = ("task", "scorer", "right", "right 95 %", "seconds")
    assert print_table(heads, cells, "table", 2, main=main) == ["task", "scorer", "right", "95 %", "seconds"]
    assert capsys.readouterr().out.splitlines() == [
        "task needle",
        "scorer  right      95 %  seconds",
        "tail     50 %  40 to 60   12.345",
        "bm25     50 %  40 to 60   12.345",
        "(2 more columns: --wide)",
    ]
    assert print_table(heads, cells, "table", 2, main=main, wide=True) == heads
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.split() == " ".join(heads).split()
    assert len(rest) == 2
