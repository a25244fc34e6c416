"""What `sp chat` does when a line begins with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from sp.commands.talk.session import Session
from sp.commands.terminal import read_text
from sp.errors import ConfigError, printable, unknown_name
from sp.session.options import Recall

QUOTED = 100
"""Characters of a span that are shown."""


class Quit(Exception):  # noqa: N818  it is no error
    """The user leaves."""


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _help(session: Session, rest: str) -> None:
    """this"""
    for name, run in COMMANDS.items():
        _say(f"  /{name:16} {run.__doc__}")
    _say(f"  {'Ctrl-C':17} end the answer; Ctrl-D: leave\n  A line that begins with a space is never a command.")


def _file(session: Session, rest: str) -> None:
    """talk about a text file; the next message asks about it"""
    if not rest:
        raise ConfigError("/file takes the path of a text file, as in /file notes.txt")
    text = read_text(Path(rest).expanduser(), "/file")
    session.add(text)
    _say(f"{rest}: {len(text):,} characters, read with your next message")


def _recall(session: Session, rest: str) -> None:
    """what the last turn brought back; with auto, append, rewind or off, how from now on"""
    if rest:
        session.recall(cast(Recall, rest))  # which checks it
        _say(f"recall: {rest}")
        return
    found = session.last.recalled if session.last else ()
    for each in found:
        text = " ".join(printable(each.text).split())
        quoted = text if len(text) <= QUOTED else f"{text[:QUOTED]} ..."
        times = f"{each.score / each.threshold:.1f} times the score it took, " if each.threshold > 0 else ""
        _say(f"  tokens {each.start:,} to {each.end:,} ({times}{each.way}): {quoted}")
    if not found:
        _say(f"nothing was brought back in the last turn (recall: {session.talk.memory.recall})")


def _clear(session: Session, rest: str) -> None:
    """forget everything and begin anew"""
    session.clear()
    _say("a new conversation")


def _quit(session: Session, rest: str) -> None:
    """leave"""
    raise Quit


COMMANDS: dict[str, Callable[[Session, str], None]] = {
    "help": _help,
    "file": _file,
    "recall": _recall,
    "clear": _clear,
    "quit": _quit,
}
"""By name; what each does is told by its first line."""


def is_command(line: str) -> bool:
    """Whether a line is no message."""
    return line.startswith("/")


def obey(line: str, session: Session) -> None:
    """Run a command; ConfigError if there is none of its name, PromptError for a file that cannot be read."""
    name, _, rest = line[1:].strip().partition(" ")
    if name not in COMMANDS:
        raise ConfigError(f"{unknown_name('command', name, COMMANDS)} (begin with a space to send it as a message)")
    COMMANDS[name](session, rest.strip())
