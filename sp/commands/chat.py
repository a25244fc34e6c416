"""`sp chat` line after line: what was said so far, what a line with a slash does, where lines come from, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast

from sp.chat import Thinking, Turn
from sp.commands.asked import RunAsked, open_pair, scorers_of, tell_thinking
from sp.commands.shell.line import Part, opt
from sp.commands.shell.terminal import AsJson, as_json_text, check_file, progress_bar, read_text
from sp.errors import ConfigError, PromptError, SpError, printable, unknown_name
from sp.prompt.prompt import prompt_of
from sp.serve.text import ReplyText
from sp.session.options import ConversationOptions, ModelOptions, PlaceOptions, Recall
from sp.trace import Reporter, silent, write_atomic

if TYPE_CHECKING:
    from sp.session import Conversation, TurnResult

OnPart = Callable[[str, str], bool | None]  # takes what more there is of thinking, and of the answer
GAP = "\n\n"  # what stands between files and the question about them, as in the prompt of `sp run`


class Session:
    """Somebody's part in a conversation. `system`: what the model is told first; nothing if empty; `needles`: pieces of
    the text to mark in rows; `turns`: all that was said; `rows`: as of `turn_row`, with the number of the
    `conversation` and the `question`; `last`: the last turn's."""

    def __init__(
        self,
        talk: Conversation,
        system: str = "",
        thinking: Thinking = Thinking(),  # noqa: B008
        needles: tuple[str, ...] = (),
    ) -> None:
        self.talk, self.rows, self._number = talk, list[dict[str, Any]](), 0
        self.turns = list[Turn]()
        self._begin = (Turn("system", system),) if system else ()
        self._thinking, self._needles = thinking, needles
        self.clear()

    def clear(self) -> None:
        """Begin anew; rows stay."""
        self._number += 1
        self.turns, self._files = [*self._begin], list[str]()
        self.last: TurnResult | None = None
        self.talk.clear()

    def add(self, text: str) -> None:
        """Put a text before the next message."""
        self._files.append(text)

    def ask(self, message: str, on_part: OnPart | None = None, reporter: Reporter = silent) -> TurnResult:
        """Answer a message, of the files before which what does not matter may be left out. If that fails the message
        was never said, and files go on waiting. `on_part`: called with thinking and answer as soon as there is more of
        one; if it returns True, the answer ends there."""
        before = "".join(text.strip("\n") + GAP for text in self._files)
        said, target = Turn("user", before + message), self.talk.pipeline.target
        prompt = prompt_of([*self.turns, said], target, (), self._thinking, kept_from=len(before))
        text, tell = ReplyText(target.tokenizer, (), prompt.thinks), on_part or (lambda reasoning, answer: None)

        def on_token(token: int) -> bool | None:
            part = text.push(token)
            return tell(part.reasoning, part.content)

        self.talk.pipeline.check_files()
        result = self.talk.answer(prompt, on_token, reporter=reporter)
        self.talk.pipeline.check_files()  # or the answer may be of other weights
        rest, answer = text.finish(), result.answer
        tell(rest.reasoning, rest.content)
        self.turns += [said, Turn("assistant", answer.text, answer.reasoning)]
        self._files, self.last = [], result
        from sp.session import turn_row

        number = 1 + sum(row["conversation"] == self._number for row in self.rows)
        row = turn_row(result, number, self._needles)
        self.rows.append({"conversation": self._number, **row, "question": message})
        return result

    def recall(self, mode: Recall) -> None:
        """Bring back what was left out in another way from now on; ConfigError for one that there is not."""
        self.talk.memory = replace(self.talk.memory, recall=mode)


QUOTED = 100  # characters of a span that are shown


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
}  # by name; what each does is told by its first line


def obey(line: str, session: Session) -> None:
    """Run a command; ConfigError if there is none of its name, PromptError for a file that cannot be read."""
    name, _, rest = line[1:].strip().partition(" ")
    if name not in COMMANDS:
        raise ConfigError(f"{unknown_name('command', name, COMMANDS)} (begin with a space to send it as a message)")
    COMMANDS[name](session, rest.strip())


DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Stopped(Exception):  # noqa: N818  it is no error
    """The user wants no answer any more, and there is none yet."""


class Stop:
    """Whether a stop was asked for.

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
    """What goes on between a session and the terminal. `as_json`: rows on stdout in place of answers; `typed`: somebody
    sits there: what goes wrong is told and the talk goes on. Else it ends the program; `out`: where rows are written,
    after each turn all of them."""

    def __init__(self, session: Session, *, as_json: bool = False, typed: bool = True, out: Path | None = None) -> None:
        self._session, self._as_json, self._typed, self._out = session, as_json, typed, out
        self._shows = not as_json and sys.stdout.isatty()
        self._begun = self._thinks = False  # something stands in the cursor's line; it is thinking

    def run(self, lines: Iterable[str]) -> None:
        """Go through lines until they end or one says /quit. SpError: where nobody types: the first that goes wrong."""
        for line in lines:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
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
        from sp.studies.figures import save_figure
        from sp.studies.plots.maps import DPI, conversation_figure

        rows = self._session.rows
        last = [row for row in rows if row["conversation"] == rows[-1]["conversation"]]
        print(f"picture in {save_figure(conversation_figure(last), path, DPI)}", file=sys.stderr)

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


def check_chats(target: Path) -> None:
    """PromptError for a target without a chat template, before models are loaded."""
    from sp.gguf import GGUFFile
    from sp.gguf.template import chat_template

    with GGUFFile.open(target) as file:
        if chat_template(file) is None:
            raise PromptError(f"{file.path.name} has no chat template, so it cannot be told who says what; see sp run")


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


def chat(
    models: ModelOptions,
    asked: Annotated[RunAsked, Part(max_new_tokens=256)],
    memory: ConversationOptions,
    thinking: Thinking,
    place: Annotated[PlaceOptions, Part("gpus target_gpus")],
    load: Annotated[
        list[Path] | None, opt(help="Text file to talk about, read with the first message; repeatable.")
    ] = None,
    system: Annotated[str, opt(help="What the model is told before everything else.")] = "",
    needle: Annotated[list[str] | None, opt(help="Piece of the text to mark in rows and picture; repeatable.")] = None,
    out: Annotated[Path | None, opt(help="JSON lines to write: what stood where, turn by turn.")] = None,
    picture: Annotated[
        Path | None, opt(help="PNG to draw at the end: the transcript, and what each turn had of it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Talk with the target about long texts, turn after turn.

    Only what is new is read; of that, what matters for the question. What was left out comes back when a later
    question asks for it. /help tells the commands. Ctrl-C ends an answer, Ctrl-D leaves. Lines that are piped in are a
    message each; answers go to stdout, all else to stderr.

    Examples
    --------
      sp chat --load book.txt --keep-ratio 0.1
      sp chat --load book.txt --picture talk.png < questions.txt
      sp chat --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off --json < questions.txt
    """
    from sp.session import Conversation, embedded

    for path, option in ((out, "--out"), (picture, "--picture")):
        check_file(path, option)
    if picture is not None and picture.suffix != ".png":
        raise ConfigError(f"--picture draws a PNG, so {picture} must end in .png")
    texts = [(path, read_text(path, "--load")) for path in load or []]
    check_chats(models.target or embedded("target"))
    pipeline = open_pair(models, place, scorers_of(asked))
    tell_thinking(thinking, pipeline.target)
    session = Session(Conversation(pipeline, asked.options, memory), system, thinking, tuple(needle or ()))
    for path, text in texts:
        session.add(text)
        print(f"{path}: {len(text):,} characters, read with the first message", file=sys.stderr)
    pipeline.warm_up(options=asked.options)
    typed = sys.stdin.isatty()
    loop = Loop(session, as_json=as_json, typed=typed, out=out)
    try:
        loop.run(typed_lines() if typed else piped_lines())
    finally:
        if picture is not None and session.rows:
            loop.draw(picture)
