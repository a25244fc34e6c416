"""Tables on stdout: what stands in a cell is shown as it is."""

from __future__ import annotations

import pytest

from sp.commands.terminal import print_table


@pytest.mark.parametrize("output", ["table", "md"])
def test_brackets_are_text(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["model [GB]", "tok/s"], [["tiny[v2]", "8.5"], ["[bold]", "10.25"]], output, 1)
    shown = capsys.readouterr().out
    for piece in ("model [GB]", "tiny[v2]", "[bold]", "10.25"):
        assert piece in shown
