"""`sp run --prompt-file -`: the text from standard input, as the file's text would be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TEXT = "The grass is green. The sky is blue, und es ist schön. " * 3
ASKED = ["--question", "What is blue?", "--device", "cpu", "--no-full", "--max-new-tokens", "2", "--json"]


def sp_run(*arguments: str, stdin: bytes) -> Any:
    command = [sys.executable, "-m", "sp", "run", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def test_standard_input_is_read_as_a_file_is(tmp_path: Path) -> None:
    (file := tmp_path / "text.txt").write_text(TEXT)
    piped = sp_run("--prompt-file", "-", *ASKED, "--out", str(tmp_path / "a"), stdin=TEXT.encode())
    read = sp_run("--prompt-file", str(file), *ASKED, "--out", str(tmp_path / "b"), stdin=b"")
    assert (piped.returncode, read.returncode) == (0, 0), piped.stderr
    one, other = (json.loads(done.stdout) for done in (piped, read))
    assert (one["prompt_tokens"], one["answer"]) == (other["prompt_tokens"], other["answer"])
    assert (tmp_path / "a" / "kept.html").read_text() == (tmp_path / "b" / "kept.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (ASKED, b"\xff\xfe broken", "standard input is not UTF-8 text (byte 0)"),
        (ASKED, b" \n ", "the prompt is empty"),
        ([], b"text", "the question is missing: say what to ask about standard input"),
    ],
)
def test_what_is_wrong_with_it_is_told_in_a_line(
    tmp_path: Path, arguments: list[str], stdin: bytes, message: str
) -> None:
    done = sp_run("--prompt-file", "-", *arguments, "--out", str(tmp_path / "o"), stdin=stdin)
    assert done.returncode == 2
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"sp: error: {message}")
    assert not (tmp_path / "o").exists()
