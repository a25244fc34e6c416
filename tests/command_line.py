"""The command line called from a test: what it printed, how it ended, and every command there is."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

from sp import cli
from sp.commands.shell.parser import Command


class Done(NamedTuple):
    """What came of a call."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None

    @property
    def output(self) -> str:
        """All that was printed."""
        return self.stdout + self.stderr


def invoke(*words: Any) -> Done:
    """Call `sp` with arguments, or with a list of them; what goes wrong is kept, not raised."""
    given = words[0] if len(words) == 1 and isinstance(words[0], list) else words
    out, err, status, wrong = StringIO(), StringIO(), 0, None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.call([str(word) for word in given])
        except SystemExit as stop:
            status = int(stop.code or 0)
        except Exception as error:
            status, wrong = 1, error
    return Done(status, out.getvalue(), err.getvalue(), wrong)


def commands() -> dict[tuple[str, ...], Command]:
    """Every command, by its words."""
    return {tuple(words.split()): cli.command_of(words) for words in cli.COMMANDS}
