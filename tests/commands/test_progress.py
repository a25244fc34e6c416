"""Long work off a terminal: a line on stderr now and then, none on stdout, and none of short work."""

from __future__ import annotations

import re
import time

import pytest
from rich.console import Console

from sp.commands.shell import terminal
from sp.commands.shell.terminal import followed, progress_bar
from sp.commands.sweep import progress


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of seconds are long enough."""
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.1)
    monkeypatch.setattr(terminal, "NEXT_LINES", 0.5)


@pytest.mark.usefixtures("soon")
def test_long_work_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("measuring", 8) as advance:
        time.sleep(0.3)
        advance(2)
        time.sleep(0.5)
    out, err = capsys.readouterr()
    assert out == ""
    assert [re.sub(r"\d+ s", "N s", line) for line in err.splitlines()] == [
        "sp: measuring: 0 % after N s",
        "sp: measuring: 25 % after N s, about N s left",
    ]


@pytest.mark.usefixtures("soon")
def test_work_without_an_end_tells_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("compiling", None) as advance:
        advance(1)
        time.sleep(0.2)
    assert re.fullmatch(r"sp: compiling: \d s\n", capsys.readouterr().err)


@pytest.mark.usefixtures("soon")
def test_sweeps_tell_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    with followed(progress(Console(stderr=True))) as bar:
        bar.add_task("study", total=4, runs=4, over=0, completed=1)
        time.sleep(0.2)
    assert capsys.readouterr().err.startswith("sp: study: 25 % after 0 s, about ")


def test_short_work_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("measuring", 8) as advance:
        advance(8)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("soon")
def test_nothing_is_said_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), progress_bar("measuring", 8):
        raise ValueError("broken")
    time.sleep(0.2)
    assert capsys.readouterr() == ("", "")
