"""`sp chat`: the session, commands such as /file, lines from a terminal or a pipe, and Ctrl-C."""

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
from sp.commands.common import RunArguments, open_pair, scorers_of, warn_thinking
from sp.commands.shell.parser import Adjusted, opt
from sp.commands.shell.terminal import AsJson, as_json_text, progress_bar, read_text
from sp.errors import ConfigError, PromptError, SpError, printable, unknown_name
from sp.prompt.prompt import prompt_of
from sp.serve.text import ReplyText
from sp.session.options import ConversationOptions, ModelOptions, PlaceOptions, Recall
from sp.trace import Reporter, silent, write_atomic

if TYPE_CHECKING:
    from sp.session import Conversation, TurnResult

OnPart = Callable[[str, str], bool | None]  # takes new text of the thoughts, and of the answer
GAP = "\n\n"  # between files and the question about them, as in the prompt of `sp run`


class Session:
    """A user's chat: one conversation after another, and the record of all turns.

    Parameters
    ----------
    conversation : Conversation
        Answers messages; cleared by `clear`.
    system : str
        System message; none if empty.
    thinking : Thinking
    needles : tuple of str
        Passages of the text to mark in rows.

    Attributes
    ----------
    turns : list of Turn
        All messages of the present conversation.
    rows : list of dict
        A row for each turn as of `turn_row`, with the number of the ``conversation`` and the ``question``.
    last : TurnResult, optional
        Result of the last turn.
    """

    def __init__(
        self,
        conversation: Conversation,
        system: str = "",
        thinking: Thinking = Thinking(),  # noqa: B008
        needles: tuple[str, ...] = (),
    ) -> None:
        self.conversation, self.rows, self._number = conversation, list[dict[str, Any]](), 0
        self.turns = list[Turn]()
        self._begin = (Turn("system", system),) if system else ()
        self._thinking, self._needles = thinking, needles
        self.clear()

    def clear(self) -> None:
        """Begin a new conversation; rows stay."""
        self._number += 1
        self.turns, self._files = [*self._begin], list[str]()
        self.last: TurnResult | None = None
        self.conversation.clear()

    def add(self, text: str) -> None:
        """Add a file's text before the next message."""
        self._files.append(text)

    def ask(self, message: str, on_part: OnPart | None = None, reporter: Reporter = silent) -> TurnResult:
        """Answer a message; the texts of the files before it may be compressed.

        `on_part`: called with new text of the thoughts and of the answer; if it returns True, the answer ends there. If
        answering fails, the message is dropped and the files remain for the next one.
        """
        before = "".join(text.strip("\n") + GAP for text in self._files)
        question, target = Turn("user", before + message), self.conversation.pipeline.target
        prompt = prompt_of([*self.turns, question], target, (), self._thinking, kept_from=len(before))
        text, call = ReplyText(target.tokenizer, (), prompt.thinks), on_part or (lambda reasoning, answer: None)

        def on_token(token: int) -> bool | None:
            part = text.push(token)
            return call(part.reasoning, part.content)

        self.conversation.pipeline.check_files()
        result = self.conversation.answer(prompt, on_token, reporter=reporter)
        self.conversation.pipeline.check_files()  # again: a file that changed meanwhile has spoilt the answer
        rest, answer = text.finish(), result.answer
        call(rest.reasoning, rest.content)
        self.turns += [question, Turn("assistant", answer.text, answer.reasoning)]
        self._files, self.last = [], result
        from sp.session import turn_row

        number = 1 + sum(row["conversation"] == self._number for row in self.rows)
        row = turn_row(result, number, self._needles)
        self.rows.append({"conversation": self._number, **row, "question": message})
        return result

    def recall(self, mode: Recall) -> None:
        """Set how omitted text is restored from the next turn on; ConfigError for an unknown mode."""
        self.conversation.memory = replace(self.conversation.memory, recall=mode)


QUOTED = 100  # characters of a restored passage that /recall prints


class Quit(Exception):  # noqa: N818  it is no error
    """The user ends the chat."""


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _help(session: Session, rest: str) -> None:
    """this"""
    for name, run in COMMANDS.items():
        _say(f"  /{name:16} {run.__doc__}")
    _say(f"  {'Ctrl-C':17} end the answer; Ctrl-D: quit\n  A line that begins with a space is never a command.")


def _file(session: Session, rest: str) -> None:
    """add a text file before your next message"""
    if not rest:
        raise ConfigError("/file takes the path of a text file, as in /file notes.txt")
    text = read_text(Path(rest).expanduser(), "/file")
    session.add(text)
    _say(f"{rest}: {len(text):,} characters, read with your next message")


def _recall(session: Session, rest: str) -> None:
    """print passages restored in the last turn; auto, append, rewind or off sets the mode"""
    if rest:
        session.recall(cast(Recall, rest))  # which checks it
        _say(f"recall: {rest}")
        return
    passages = session.last.recalled if session.last else ()
    for passage in passages:
        text = " ".join(printable(passage.text).split())
        quoted = text if len(text) <= QUOTED else f"{text[:QUOTED]} ..."
        ratio = f"score {passage.score / passage.threshold:.1f} x threshold, " if passage.threshold > 0 else ""
        _say(f"  tokens {passage.start:,} to {passage.end:,} ({ratio}{passage.way}): {quoted}")
    if not passages:
        _say(f"no passage was restored in the last turn (recall: {session.conversation.memory.recall})")


def _clear(session: Session, rest: str) -> None:
    """forget all messages and files, and begin a new conversation"""
    session.clear()
    _say("new conversation")


def _quit(session: Session, rest: str) -> None:
    """quit"""
    raise Quit


COMMANDS: dict[str, Callable[[Session, str], None]] = {
    "help": _help,
    "file": _file,
    "recall": _recall,
    "clear": _clear,
    "quit": _quit,
}
"""Commands by name; /help prints their docstrings."""


def run_command(line: str, session: Session) -> None:
    """Run a line with a command; ConfigError if it is unknown, PromptError for a file that cannot be read."""
    name, _, rest = line[1:].strip().partition(" ")
    if name not in COMMANDS:
        raise ConfigError(f"{unknown_name('command', name, COMMANDS)} (begin with a space to send it as a message)")
    COMMANDS[name](session, rest.strip())


DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Stopped(Exception):  # noqa: N818  it is no error
    """The user stopped a turn before its first token."""


class StopRequest:
    """A request of the user to end an answer.

    >>> stop = StopRequest()
    >>> stop.request()
    >>> stop.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False

    def request(self) -> None:
        """Request the end of the answer; a second request ends the program."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def stopping(self, reporter: Reporter) -> Reporter:
        """Wrap a reporter so that its stages raise `Stopped` after a request."""

        @contextmanager
        def report(stage: str, total: int) -> Iterator[Callable[[int], None]]:
            with reporter(stage, total) as progress:

                def advance(done: int) -> None:
                    if self.requested:
                        raise Stopped
                    if progress is not None:
                        progress(done)

                yield advance

        return report


@contextmanager
def stop_by_signal() -> Iterator[StopRequest]:
    """Let Ctrl-C request a stop while the context is open; outside of the main thread it changes nothing."""
    stop = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.request()

    if threading.current_thread() is not threading.main_thread():  # Python allows no handlers elsewhere
        yield stop
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class ChatLoop:
    """Read lines, pass them to a session and print its answers.

    Parameters
    ----------
    session : Session
    as_json : bool
        Print rows on stdout in place of answers.
    interactive : bool
        Print errors and go on, as a user types the lines; otherwise an error ends the program.
    out : Path, optional
        File of all rows, written after each turn.
    """

    def __init__(
        self, session: Session, *, as_json: bool = False, interactive: bool = True, out: Path | None = None
    ) -> None:
        self._session, self._as_json, self._interactive, self._out = session, as_json, interactive, out
        self._styled = not as_json and sys.stdout.isatty()
        self._in_line = self._thinks = False  # the cursor is behind some text; that text is a thought

    def run(self, lines: Iterable[str]) -> None:
        """Answer lines until they end, or one is /quit; SpError for the first that fails if not interactive."""
        for line in lines:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    run_command(line, self._session)
                else:
                    self._answer(line.strip())
            except Quit:
                return
            except Stopped:
                print("stopped before the first token; the message was dropped", file=sys.stderr)
            except SpError as error:
                if not self._interactive:
                    raise
                print(f"sp: error: {error}", file=sys.stderr)

    def draw(self, path: Path) -> None:
        """Draw the last conversation into a PNG file."""
        from sp.studies.figures import save_figure
        from sp.studies.plots.maps import DPI, conversation_figure

        rows = self._session.rows
        last = [row for row in rows if row["conversation"] == rows[-1]["conversation"]]
        print(f"picture in {save_figure(conversation_figure(last), path, DPI)}", file=sys.stderr)

    def _answer(self, message: str) -> None:
        with stop_by_signal() if self._interactive else nullcontext(StopRequest()) as stop:
            try:
                reporter = stop.stopping(progress_bar)
                result = self._session.ask(message, lambda *part: self._show(stop, *part), reporter)
            except BaseException:
                if self._in_line:
                    self._end()
                raise
        self._end()
        for line in result.trace.facts.get("dropped", ()):
            print(f"sp: {line}", file=sys.stderr)
        row = self._session.rows[-1]
        if self._as_json:
            print(as_json_text(row), flush=True)
        else:
            print(numbers(result, stop.requested), file=sys.stderr, flush=True)
        if self._out is not None:
            lines = [json.dumps(row, ensure_ascii=False) for row in self._session.rows]
            write_atomic(self._out, ("\n".join(lines) + "\n").encode())

    def _show(self, stop: StopRequest, thought: str, answer: str) -> bool:
        """Print new text of the thoughts and of the answer; return True to end the answer."""
        if self._styled and thought:
            print(f"{'' if self._thinks else DIM}{printable(thought)}", end="", flush=True)
            self._in_line = self._thinks = True
        if not self._as_json and answer:
            # A pipe gets the answer as it is; escape sequences matter only to a terminal.
            print(f"{self._normal()}{printable(answer) if self._styled else answer}", end="", flush=True)
            self._in_line = True
        return stop.requested

    def _normal(self) -> str:
        before, self._thinks = self._thinks, False
        return f"{PLAIN}\n" if before else ""

    def _end(self) -> None:
        """End the line with the cursor."""
        if not self._as_json:
            print(self._normal(), flush=True)
        self._in_line = False


def numbers(result: TurnResult, stopped: bool = False) -> str:
    """Return one line with the tokens and the time to the first token of a turn."""
    usage = result.usage
    parts = [f"{name} {getattr(usage, name):,}" for name in ("cached", "new", "kept", "recalled")]
    ways = {passage.way for passage in result.recalled}
    way = f" ({', '.join(sorted(ways))})" if ways else ""
    end = ", stopped" if stopped else ""
    return f"[{', '.join(parts)}{way} tokens; first token after {result.answer.ttft_s:.2f} s{end}]"


def check_chats(target: Path) -> None:
    """Raise PromptError for a target without a chat template, before models are loaded."""
    from sp.gguf import GGUFFile
    from sp.gguf.template import chat_template

    with GGUFFile.open(target) as file:
        if chat_template(file) is None:
            raise PromptError(f"{file.path.name} has no chat template, which sp chat needs; use sp run")


def typed_lines() -> Iterator[str]:
    """Yield lines of a terminal up to Ctrl-D; Ctrl-C discards a line."""
    with suppress(ModuleNotFoundError):
        import readline  # noqa: F401  gives `input` a line that can be edited
    while True:
        try:
            if sys.stdout.isatty():
                yield input("> ")
            else:  # `input` would print the prompt among the redirected answers
                print("> ", end="", file=sys.stderr, flush=True)
                yield input()
        except KeyboardInterrupt:
            print("\n(quit with Ctrl-D or /quit)", file=sys.stderr)
        except UnicodeDecodeError:
            print("sp: the line is not UTF-8 text; type it again", file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return


def piped_lines() -> Iterator[str]:
    """Yield lines of standard input; PromptError for one that is not UTF-8."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise PromptError(f"line {number} of the input is not UTF-8 text (byte {error.start})") from None


def chat(
    models: ModelOptions,
    arguments: Annotated[RunArguments, Adjusted(max_new_tokens=256)],
    memory: ConversationOptions,
    thinking: Thinking,
    place: Annotated[PlaceOptions, Adjusted("gpus target_gpus")],
    load: Annotated[list[Path] | None, opt(help="Text file, read before the first message; repeatable.")] = None,
    system: Annotated[str, opt(help="System message.")] = "",
    needle: Annotated[list[str] | None, opt(help="Passage to mark in rows and picture; repeatable.")] = None,
    out: Annotated[Path | None, opt(writes="file", help="JSON lines file for a row per turn.")] = None,
    picture: Annotated[
        Path | None,
        opt(writes="file", help="PNG file to draw at the end: the transcript, and the tokens that each turn used."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Chat with the target about long texts.

    Each turn reads only new text, and of it only the tokens that matter for the question. Omitted text is restored
    when a later question needs it. /help lists the commands. Ctrl-C ends an answer, Ctrl-D the chat. From a pipe each
    line is a message; answers go to stdout, everything else to stderr.

    Examples
    --------
      sp chat --load book.txt --keep-ratio 0.1
      sp chat --load book.txt --picture talk.png < questions.txt
      sp chat --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off --json < questions.txt
    """
    from sp.session import Conversation, embedded

    if picture is not None and picture.suffix != ".png":
        raise ConfigError(f"--picture draws a PNG, so {picture} must end in .png")
    texts = [(path, read_text(path, "--load")) for path in load or []]
    check_chats(models.target or embedded("target"))
    pipeline = open_pair(models, place, scorers_of(arguments))
    warn_thinking(thinking, pipeline.target)
    session = Session(Conversation(pipeline, arguments.options, memory), system, thinking, tuple(needle or ()))
    for path, text in texts:
        session.add(text)
        print(f"{path}: {len(text):,} characters, read with the first message", file=sys.stderr)
    pipeline.warm_up(options=arguments.options)
    interactive = sys.stdin.isatty()
    loop = ChatLoop(session, as_json=as_json, interactive=interactive, out=out)
    try:
        loop.run(typed_lines() if interactive else piped_lines())
    finally:
        if picture is not None and session.rows:
            loop.draw(picture)
