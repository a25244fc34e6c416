"""Loop: line after line, a message answered or a command obeyed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from sp.commands.talk.session import Session
from sp.commands.talk.slash import Quit, is_command, obey
from sp.commands.talk.stopping import Stop, Stopped, stop_by_signal
from sp.commands.terminal import as_json_text, progress_bar
from sp.errors import SpError, printable
from sp.session import TurnResult
from sp.trace import write_atomic

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Loop:
    """What goes on between a session and the terminal.

    Parameters
    ----------
    session : Session
    as_json : bool
        Rows on stdout in place of answers.
    typed : bool
        Somebody sits there: what goes wrong is told and the talk goes on. Else it ends the program.
    out : Path, optional
        Where rows are written, after each turn all of them.
    """

    def __init__(self, session: Session, *, as_json: bool = False, typed: bool = True, out: Path | None = None) -> None:
        self._session, self._as_json, self._typed, self._out = session, as_json, typed, out
        self._shows = not as_json and sys.stdout.isatty()
        self._begun = self._thinks = False  # something stands in the cursor's line; it is thinking

    def run(self, lines: Iterable[str]) -> None:
        """Go through lines until they end or one says /quit.

        Raises
        ------
        SpError
            Where nobody types: the first that goes wrong.
        """
        for line in lines:
            if not line.strip():
                continue
            try:
                if is_command(line):
                    obey(line, self._session)
                else:
                    self._answer(line.strip())
            except Quit:
                return
            except Stopped:
                print("stopped before there was an answer; the message is taken back", file=sys.stderr)
            except SpError as error:
                if not self._typed:
                    raise
                print(f"sp: error: {error}", file=sys.stderr)

    def draw(self, path: Path) -> None:
        """Draw the last conversation."""
        from sp.studies.figures import save_png
        from sp.studies.plots.conversation_map import DPI, conversation_figure

        rows = self._session.rows
        last = [row for row in rows if row["conversation"] == rows[-1]["conversation"]]
        print(f"picture in {save_png(conversation_figure(last), path, DPI)}", file=sys.stderr)

    def _answer(self, message: str) -> None:
        with stop_by_signal() if self._typed else nullcontext(Stop()) as stop:
            try:
                result = self._session.ask(message, lambda *part: self._show(stop, *part), stop.watched(progress_bar))
            except BaseException:
                if self._begun:
                    self._end()
                raise
        self._end()
        for line in result.trace.facts.get("dropped", ()):
            print(f"sp: {line}", file=sys.stderr)
        row = self._session.rows[-1]
        if self._as_json:
            print(as_json_text(row), flush=True)
        else:
            print(numbers(result, stop.asked), file=sys.stderr, flush=True)
        if self._out is not None:
            lines = [json.dumps(each, ensure_ascii=False) for each in self._session.rows]
            write_atomic(self._out, ("\n".join(lines) + "\n").encode())

    def _show(self, stop: Stop, thought: str, said: str) -> bool:
        """Write what there is more of; whether to end here."""
        if self._shows and thought:
            print(f"{'' if self._thinks else DIM}{printable(thought)}", end="", flush=True)
            self._begun = self._thinks = True
        if not self._as_json and said:
            print(f"{self._normal()}{printable(said) if self._shows else said}", end="", flush=True)
            self._begun = True
        return stop.asked

    def _normal(self) -> str:
        before, self._thinks = self._thinks, False
        return f"{PLAIN}\n" if before else ""

    def _end(self) -> None:
        """Let the cursor stand at the beginning of a line."""
        if not self._as_json:
            print(self._normal(), flush=True)
        self._begun = False


def numbers(result: TurnResult, stopped: bool = False) -> str:
    """What a turn cost, in a line."""
    usage = result.usage
    parts = [f"{name} {getattr(usage, name):,}" for name in ("cached", "new", "kept", "recalled")]
    ways = {each.way for each in result.recalled}
    way = f" ({', '.join(sorted(ways))})" if ways else ""
    end = ", stopped" if stopped else ""
    return f"[{', '.join(parts)}{way} tokens; first token after {result.answer.ttft_s:.2f} s{end}]"
