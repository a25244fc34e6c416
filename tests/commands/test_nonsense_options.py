"""Every option of every command with values that mean nothing: refused in a line before any work, by the parser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from command_line import invoke

from sp.cli import COMMANDS, command_of
from sp.commands.shell.parser import Command, CommandOption
from sp.config import REQUIRED
from sp.errors import SpError

NUMBERS = ("", "nonsense", "nan", "inf", "-1", "1e309", "9" * 20, "a\x1b[2Jb", "\udcff")
TEXTS = ("", "\udcff")
JUDGED = {"--reasoning-effort", "--accept", "--budgets", "--nodes"}
"""Options whose values a chat template knows, or a draft, or a command before it opens one; see its own tests."""


def parsed_only(words: str) -> Command:
    """A command that parses, and builds what it is given, but does nothing."""
    command = command_of(words)

    @wraps(command.function)
    def nothing(**_: Any) -> None:
        return None

    return replace(command, function=nothing)


def options() -> Iterator[tuple[Command, CommandOption, list[str]]]:
    """Options that take a value, each with what its command needs besides."""
    for words in COMMANDS:
        command = parsed_only(words)
        needed = ["x" for one in command.options if one.field.option.argument and one.field.value is REQUIRED]
        for one in command.options:
            if one.kind is not bool and one.flags:
                yield command, one, needed


def kind_of(entry: CommandOption) -> Any:
    """Of one value of an option."""
    kind = get_args(entry.kind)[0] if entry.many or get_origin(entry.kind) is tuple else entry.kind
    return (
        get_args(kind)[0] if get_args(kind) and kind not in (str, Path) and get_args(kind)[0] in (int, float) else kind
    )


def test_no_option_takes_nonsense() -> None:
    """Numbers and words of a list; of texts and paths those that are empty, where that is no default, or no UTF-8."""
    taken, asked = defaultdict[str, list[str]](list), 0
    for command, one, needed in options():
        kind = kind_of(one)
        values = ("",) if kind is Path else TEXTS if kind is str else NUMBERS
        for value in values if one.flags[-1] not in JUDGED else ():
            if kind is str and one.field.value == value:
                continue
            asked += 1
            try:
                command.call(command.parse([*needed, f"{one.flags[-1]}={value}"]))
                taken[f"{command.words} {one.flags[-1]}"].append(value)
            except SpError as error:
                said = str(error)
                assert said.isprintable(), (command.words, one.flags, value, said)
                assert len(said) < 400
    assert asked > 2000
    assert taken == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan --synthetic-target qwen3-0.6b --target-type nonsense", "unknown file type of --target-type"),
        ("plan --synthetic-target qwen3-0.6b --drafter-type nonsense", "unknown file type of --drafter-type"),
        ("bench ttft --synthetic-drafter nonsense", "unknown shape of --synthetic-drafter"),
        ("bench decode --speculator-type nonsense", "unknown file type of --speculator-type"),
        ("bench ttft --full-seconds nan", "--full-seconds must be a finite number"),
        ("bench ttft --full-seconds -1", "--full-seconds must be at least 0"),
        ("bench turn --keep-ratio 2", "--keep-ratio must be at most 1"),
        ("kernels list --path nonsense", "--path is 'nonsense'"),
        ("heads --task nonsense", "unknown task 'nonsense'"),
        ("serve --host=", "--host is empty"),
        ("serve --api-key short", "the API key must be"),
        ("serve --allow-host http://x", "--allow-host is 'http://x'"),
        ("run --positions=", "--positions is empty"),
        ("run --seed -1", "--seed must be at least 0"),
    ],
)
def test_what_was_taken_once_is_refused(words: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("work has begun")

    monkeypatch.setattr("sp.session.loaded.load", opened)
    monkeypatch.setattr("sp.session.pipeline.load", opened)
    found = invoke(words.split())
    assert isinstance(found.exception, SpError), found
    assert str(found.exception).startswith(said)
