"""Commands of README and docs are read by the real parser; those marked `<!-- run -->` are run, code in Python too."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import commands as all_commands
from pages import ROOT, Block, blocks, commands, pages

from sp import cli
from sp.decode import DECODERS
from sp.errors import UsageError
from sp.evals import TASKS
from sp.named import read_strategies
from sp.scoring import SCORERS
from sp.selection import SELECTORS
from sp.studies.sweep import store

SHELL = "bash", "console", "sh", ""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NAMED = {"scorer": SCORERS, "selector": SELECTORS, "decode": DECODERS, "tasks": TASKS}
OF_PAGES = {"recent", "value_norm", "sharpest_head", "question_echo", "best_token", "peaks", "lost_key"}
"""Strategies that pages on extending add; tests/docs/test_extending.py runs those."""
DRIVER = """
import json, sys
from sp import cli
from sp.studies import figures

figures.SHARPNESS = 0.25  # all is drawn, and a sixteenth is stored
todo = json.loads(sys.stdin.read())
for words in todo["commands"]:
    print("##", words, flush=True)
    sys.argv = words
    try:
        cli.main()
    except SystemExit as stop:
        assert not stop.code, words
print("## python", flush=True)
exec(todo["python"], {"text": todo["text"]})
"""


def simple(line: str) -> Iterator[list[str]]:
    """The words of every program that a line calls, comments and redirections left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set("|&;"):
            if words:
                yield words
            words = []
        else:
            words.append(word)


def called(kinds: tuple[str, ...] = SHELL) -> Iterator[tuple[Block, list[str]]]:
    """Every program that pages call, with its arguments."""
    for block in blocks(*kinds):
        for line in commands(block.text):
            for words in simple(line):
                yield block, words[: next((i for i, word in enumerate(words) if word in (">", "<", ">>")), None)]


def ours() -> list[tuple[str, list[str]]]:
    """Arguments of every `sp` that pages call, and where."""
    found = []
    for block, words in called():
        if words[0] == "sp" or words[0].endswith("/sp") or words[:3] == ["python", "-m", "sp"]:
            at = words.index("sp") if "sp" in words else 0
            found.append((f"{block.page.relative_to(ROOT)}:{block.line}: {shlex.join(words)}", words[at + 1 :]))
    return found


def parse(words: list[str]) -> dict[str, Any]:
    """What the real parser makes of arguments of `sp`, by the names of the options."""
    if words[:1] == ["--version"] or words in (["--help"], []):
        return {}
    name, rest = cli.split_command(words)
    found = cli.command_of(name).parse([word for word in rest if word not in ("-h", "--help")])
    return {key.rpartition(".")[2]: value for key, value in found.items()}


def test_pages_have_commands() -> None:
    assert len(ours()) > 100
    assert len({where.split(":")[0] for where, _ in ours()}) > 15


def test_every_command_of_sp_is_one() -> None:
    wrong = []
    for where, words in ours():
        try:
            given = parse(words)
            for option, registry in NAMED.items():
                text = given.get(option)
                if isinstance(text, str) and text and not any(name in text for name in OF_PAGES):
                    read_strategies(text.replace("-without-{task}", ""), registry, option)
        except Exception as error:
            wrong.append(f"{where}: {type(error).__name__} {error}")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_command_would_be_found() -> None:
    for words in (["run", "--no-such-option"], ["nothing"], ["bench", "nothing"]):
        with pytest.raises(UsageError):
            parse(words)
    assert parse(["run", "--keep-ratio", "0.2"])["keep_ratio"] == 0.2
    assert list(simple("a 'b|c' | sp run -x && d  # e")) == [["a", "b|c"], ["sp", "run", "-x"], ["d"]]


@cache
def options_of(path: tuple[str, ...]) -> set[str]:
    """Options of a command, or of all in a group, by its words."""
    inside = [one for words, one in all_commands().items() if words[: len(path)] == path]
    return {flag for one in inside for each in one.options for flag in (*each.flags, *each.switches)} | {"-h", "--help"}


def test_commands_within_sentences_have_the_options_they_name() -> None:
    wrong, seen = [], 0
    known = {words[:n] for words in all_commands() for n in (1, 2)}
    for page in pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for code in re.findall(r"`(sp [a-z][^`]*)`", text):
            words = code.split()[1:]
            path = tuple(words[:2]) if tuple(words[:2]) in known else tuple(words[:1])
            if path not in known or (path[0] in cli.GROUPS and len(words) > 1 and len(path) < 2 and words[1][0] != "-"):
                wrong += [] if "|" in code or words[-1] == "..." else [f"{page.name}: no command {code!r}"]
                continue
            seen += 1
            flags = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            wrong += [f"{page.name}: {code!r} has no {flag}" for flag in sorted(flags - options_of(path))]
    assert not wrong, "\n".join(wrong)
    assert seen > 50


def test_other_programs_are_given_files_and_extras_that_are_there() -> None:
    wrong = []
    for block, words in called():
        where = f"{block.page.relative_to(ROOT)}:{block.line}"
        if "pip" in words[0] or words[:3] == ["python", "-m", "pip"]:
            for extra in re.findall(r"\[([\w,]+)\]", " ".join(words)) if "-e" in words else ():
                wrong += [f"{where}: no extra {one}" for one in extra.split(",") if one not in EXTRAS]
        elif words[0] in ("python", "pytest") and "/" in "".join(words[1:]):
            wrong += [f"{where}: no {word}" for word in words[1:] if named(word) and not (ROOT / word).exists()]
    for page in pages():
        for code in re.findall(r"`((?:python|pytest) [^`]*)`", page.read_text()):
            wrong += [
                f"{page.name}: no {word}" for word in code.split()[1:] if named(word) and not (ROOT / word).exists()
            ]
    assert not wrong, "\n".join(wrong)


def read(page: str) -> str:
    """The text of a page, by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def named(word: str) -> bool:
    """Whether a word is a file of the repository, by where it begins."""
    return word.startswith(("experiments/", "tests/", "tests", "sp/"))


def test_the_query_of_rows_is_the_one_that_is_tested() -> None:
    """By tests/studies/test_store.py, as the module's docstring has it."""
    said = [re.findall(r'duckdb -c "(.*?)"', text, re.S) for text in (store.__doc__ or "", read("docs/sweeps.md"))]
    assert len(said[0]) == len(said[1]) == 1
    assert said[0][0].split() == said[1][0].split()


@pytest.mark.parametrize("block", list(blocks("python")), ids=lambda block: f"{block.page.stem}-{block.line}")
def test_python_of_pages_is_python(block: Block) -> None:
    text = block.text
    if text.startswith(">>>"):
        text = "".join(f"{line[4:]}\n" for line in text.splitlines() if line.startswith((">>> ", "... ")))
    ast.parse(text)


@pytest.mark.slow
def test_what_is_marked_runs(tmp_path: Path) -> None:
    """In a folder with a short `book.txt`, one after the other in one process; Python last."""
    filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 10
    book = f"{filler}The special magic number for quiet-lantern is 8301947. {filler}"
    (tmp_path / "book.txt").write_text(book, "utf-8")
    lines = [words for block, words in called() if block.run]
    assert {words[0] for words in lines} == {"sp"}
    assert len(lines) >= 3
    code = "\n".join(block.text for block in blocks("python") if block.run)
    question = "What is the special magic number for quiet-lantern?"
    todo = {"commands": lines, "python": code, "text": f"{book}\n\n{question}"}
    given = [sys.executable, "-c", DRIVER]
    done = subprocess.run(given, input=json.dumps(todo), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    ran = done.stdout.split("## ")[1:]
    assert len(ran) == len(lines) + 1
    assert any("Answer  8301947." in out for out in ran)
    assert "8301947" in ran[-1]
