"""`sp run --prompt-file -`: the text from standard input, as the file's text would be."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from sp import cli

TEXT = "The grass is green. The sky is blue, und es ist schön. " * 3
ASKED = ["--question", "What is blue?", "--device", "cpu", "--no-full", "--max-new-tokens", "2", "--json"]


def sp_run(monkeypatch: pytest.MonkeyPatch, *arguments: object, stdin: bytes) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "run", *map(str, arguments)])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_standard_input_is_read_as_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "text.txt").write_text(TEXT)
    found = []
    for given, stdin, out in (("-", TEXT.encode(), "a"), (file, b"", "b")):
        assert sp_run(monkeypatch, "--prompt-file", given, *ASKED, "--out", tmp_path / out, stdin=stdin) == 0
        found.append(json.loads(capsys.readouterr().out))
    one, other = found
    assert (one["prompt_tokens"], one["answer"]) == (other["prompt_tokens"], other["answer"])
    shown = [(tmp_path / out / "report.html").read_text().partition('id="tokens"')[2] for out in "ab"]
    assert shown[0].partition("<h2>")[0] == shown[1].partition("<h2>")[0] != ""


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (ASKED, b"\xff\xfe broken", "standard input is not UTF-8 text (byte 0)"),
        (ASKED, b" \n ", "the prompt is empty"),
        ([], b"text", "the question is missing; ask one about standard input"),
    ],
)
def test_what_is_wrong_with_it_is_told_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    stdin: bytes,
    message: str,
) -> None:
    out = tmp_path / "o"
    assert sp_run(monkeypatch, "--prompt-file", "-", *arguments, "--out", out, stdin=stdin) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"sp: error: {message}")
    assert not out.exists()
