"""What documents, questions and models say steers no terminal; and a prompt that was read whole is not printed."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sp import cli
from sp.commands.shell.terminal import print_json, print_table
from sp.errors import printable
from sp.prompt import Prompt
from sp.session import Pipeline, RunOptions
from sp.studies.pages import run_report

TITLE = "\x1b]0;mine\x07 \x9b31m \x7f\x08"
DOCUMENT = f"The grass is green. {TITLE} The sky is blue.\r\n" * 20
STEERS = {chr(code) for code in (*range(32), *range(0x7F, 0xA0))} - {"\n", "\t"}


def test_control_characters_are_spelled_out() -> None:
    assert printable("a\r\nb\tc") == "a\nb\tc"
    for steering in STEERS - {"\r"}:
        assert printable(f"a{steering}\n") == f"a\\x{ord(steering):02x}\n"
    assert printable("naïve 中文 🙂 [b]") == "naïve 中文 🙂 [b]"


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> None:
    (text := folder / "text.txt").write_bytes(DOCUMENT.encode())
    given = ["run", "--prompt-file", text, "--question", f"What {TITLE} is?", "--out", folder / "o", "--no-full"]
    given += ["--device", "cpu", "--max-new-tokens", "2", *options]
    monkeypatch.setattr("sys.argv", ["sp", *map(str, given)])
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert done.value.code == 0


def test_a_run_prints_what_was_kept_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, tmp_path, "--compress", "always", "--keep-ratio", "0.5", "--show-kept")
    kept = capsys.readouterr().out
    assert not STEERS & set(kept)
    assert "tokens…]" in kept
    assert "\\x1b]0;mine\\x07" in kept.replace("\n", "")
    run(monkeypatch, tmp_path, "--compress", "off", "--show-kept")
    whole = capsys.readouterr().out
    assert "grass" not in whole
    assert "mine" not in whole
    assert "Compression was not active" in whole


def test_answers_of_a_run_steer_nothing() -> None:
    pair, printed = Pipeline.open(device="cpu"), StringIO()
    result = pair.run(Prompt.from_text("The sky is"), RunOptions(compress="off", max_new_tokens=1), full=True)
    answer = replace(result.answer, text=TITLE, reasoning=f"{TITLE} [b]")
    result = replace(result, answer=answer, full=replace(answer))
    report = run_report.summary(result, {"report": Path(f"o/{TITLE}")})
    run_report.print_outcome(Console(file=printed, width=200), report, result)
    assert not STEERS & set(printed.getvalue())
    assert printed.getvalue().count("\\x1b]0;mine\\x07") == 5


@pytest.mark.parametrize("output", ["table", "md"])
def test_tables_and_json_steer_nothing(output: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["task", "n"], [[TITLE, "1"], ["b", "2"]], output, 1)
    print_json({"text": TITLE})
    out = capsys.readouterr().out
    assert not STEERS & set(out)
    assert json.loads(out[out.index("{") :]) == {"text": TITLE}
