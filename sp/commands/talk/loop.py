"""Loop: line after line, a message answered or a command obeyed; where lines come from, and Ctrl-C in an answer."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from sp.commands.talk.session import Session
from sp.commands.talk.slash import Quit, is_command, obey
from sp.commands.terminal import as_json_text, progress_bar
from sp.conversation import TurnResult
from sp.errors import PromptError, SpError, printable
from sp.pipeline.result import Reporter
from sp.trace import write_atomic

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Stopped(Exception):  # noqa: N818  it is no error
    """The user wants no answer any more, and there is none yet."""


class Stop:
    """Whether a stop was asked for.

    Examples
    --------
    >>> stop = Stop()
    >>> stop.ask()
    >>> stop.asked
    True
    """

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Ask for it; the second time, end the program."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def watched(self, reporter: Reporter) -> Reporter:
        """The same reporter, whose stages end with `Stopped` once it was asked for."""

        @contextmanager
        def opened(what: str, total: int) -> Iterator[Callable[[int], None]]:
            with reporter(what, total) as progress:

                def told(done: int) -> None:
                    if self.asked:
                        raise Stopped
                    if progress is not None:
                        progress(done)

                yield told

        return opened


@contextmanager
def stop_by_signal() -> Iterator[Stop]:
    """Ctrl-C asks for a stop as long as this lasts; it does what it did before in a thread, and behind it."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.ask()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


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


def typed_lines() -> Iterator[str]:
    """Lines of a terminal up to Ctrl-D; Ctrl-C throws a line away. What asks for them goes where answers do not."""
    with suppress(ModuleNotFoundError):
        import readline  # noqa: F401  gives `input` a line that can be edited
    while True:
        try:
            if sys.stdout.isatty():
                yield input("> ")
            else:
                print("> ", end="", file=sys.stderr, flush=True)
                yield input()
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /quit leaves)", file=sys.stderr)
        except UnicodeDecodeError:
            print("sp: that was no UTF-8 text; type it again", file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return


def piped_lines() -> Iterator[str]:
    """Lines of standard input; PromptError for one that is no text."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise PromptError(f"line {number} of the input is not UTF-8 text (byte {error.start})") from None
