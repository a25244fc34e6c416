"""What a command will write is checked before it works: every option that names an output, of every command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import commands, invoke

from sp.commands.shell.parser import Command, CommandOption
from sp.config import REQUIRED
from sp.errors import ConfigError

READ = {
    "file", "files", "paths", "data", "results", "target", "drafter", "speculator", "break_even", "session_dir", "load",
    "prompt_file", "text", "questions", "simulate", "program", "model", "pages", "baseline",
}  # fmt: skip
"""Options with paths that must exist, or that their users check (`session_dir`, by `Shelf`)."""
PATHS = [
    (words, option) for words, command in commands().items() for option in command.options
    if "Path" in str(option.field.hint) and option.name not in READ
]  # fmt: skip


def parse(words: tuple[str, ...], option: CommandOption, path: Path) -> None:
    """Parse a command that sets this option, and an `x` for each value that it needs besides."""
    command: Command = commands()[words]
    needed = [other for other in command.options if other.field.value is REQUIRED and other != option]
    given = [text for other in needed for text in (*other.flags[-1:], "x")]
    command.parse([*given, option.flags[-1], str(path)])


@pytest.mark.parametrize(("words", "option"), PATHS, ids=lambda value: getattr(value, "name", value))
def test_every_output_is_checked_when_the_command_line_is_read(
    words: tuple[str, ...], option: CommandOption, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("here before")
    with pytest.raises(ConfigError, match=f"^cannot write below .*; check the path given to {option.flags[-1]}$"):
        parse(words, option, file / "new")
    kind = option.field.option.writes
    if kind == "file":
        with pytest.raises(ConfigError, match=f"is a folder; give {option.flags[-1]} the name of a file$"):
            parse(words, option, tmp_path)
        parse(words, option, file)
    else:
        assert kind == "folder"
        with pytest.raises(ConfigError, match=r"^cannot write below"):
            parse(words, option, file)
        parse(words, option, tmp_path)
    parse(words, option, tmp_path / "no" / "such" / "place")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "reading a command line writes nothing"
    assert file.read_text() == "here before"


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root may write to it all the same, the system's answer is given here."""
    rows, access = tmp_path / "rows.jsonl", os.access
    rows.write_text("kept\n")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != rows and access(path, mode))
    with pytest.raises(ConfigError, match=r"^cannot write .*rows\.jsonl; check the path given to --out$"):
        commands()["eval", "needle"].parse(["--out", str(rows)])


def test_a_default_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sp-run").write_text("a file")
    with pytest.raises(ConfigError, match=r"^cannot write below sp-run; check the path given to --out"):
        commands()["run",].parse([])
    commands()["run",].parse(["--out", "other"])


def test_missing_parents_are_made(tmp_path: Path) -> None:
    rows = tmp_path / "a" / "b" / "rows.jsonl"
    asked = ["eval", "needle", "-p", "300", "-n", "1", "--keep-ratio", "0.5", "--scorer", "random", "--no-controls"]
    done = invoke(*asked, "--device", "cpu", "--out", rows)
    assert done.exit_code == 0, done
    assert json.loads(rows.read_text().splitlines()[0])["task"].startswith("needle")
    model = tmp_path / "c" / "d" / "tiny.gguf"
    assert invoke("synth", "--shape", "tiny-qwen3", "-o", model).exit_code == 0
    assert model.is_file()
