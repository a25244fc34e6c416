"""Command line: find the command, call it, print its errors as one line on stderr and exit with status 2."""

from __future__ import annotations

import ast
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from sp import __version__
from sp.errors import SpError, SpWarning, UsageError, known_names, short

if TYPE_CHECKING:
    from sp.commands.shell.parser import Command

HEAD = "Speculative prefill: a small drafter decides which tokens of a long prompt a heavy model reads."
COMMANDS: Mapping[str, str] = {
    "doctor": "doctor:doctor",
    "heads": "heads:heads",
    "calibrate": "calibrate:calibrate",
    "serve": "serve:serve",
    "sweep": "sweep:sweep",
    "report": "report:report",
    "run": "run:run",
    "chat": "chat:chat",
    "front": "front:front",
    "compress": "compress:compress",
    "get": "get:get",
    "list": "list:list_",
    "inspect": "inspect:inspect",
    "plan": "plan:plan",
    "synth": "synth:synth",
    "kernels list": "kernels:list_kernels",
    "kernels check": "kernels:check",
    "kernels build": "kernels:build",
    "kernels bench": "kernels:bench",
    "kernels tune": "kernels:tune",
    "bench model": "bench.model:bench_model",
    "bench roofline": "bench.model:roofline",
    "bench decode": "bench.decode:bench_decode",
    "bench drafter": "bench.model:bench_drafter",
    "bench ttft": "bench.ttft:bench_ttft",
    "bench turn": "bench.ttft:bench_turn",
    "bench llama-cpp": "bench.decode:bench_llama_cpp",
    "eval tasks": "eval.tasks:tasks",
    "eval discriminates": "eval.tasks:discriminates",
    "eval board": "eval.turns:board",
    "eval file": "eval.natural:file",
    "eval turns": "eval.turns:turns",
    "eval natural": "eval.natural:natural",
    "eval needle": "eval.tasks:needle",
    "eval ruler": "eval.tasks:ruler",
    "eval ppl": "eval.tasks:ppl",
    "train scorer": "train:train_scorer",
}
"""Module and function of each command, below `sp.commands`; imported only when it is called or its help is printed."""
GROUPS = {
    "kernels": "Check, list, build and time the CUDA kernels.",
    "bench": "Measure whole models, and draw the results.",
    "eval": "Measure the quality of selections and answers.",
    "train": "Train scorers.",
}
INTERRUPTED = 130  # exit status, as shells use it for SIGINT


@cache
def command_of(words: str) -> Command:
    """Return the command with these words, such as ``bench ttft``."""
    from sp.commands.shell.parser import Command

    module, _, name = COMMANDS[words].partition(":")
    return Command(f"sp {words}", getattr(import_module(f"sp.commands.{module}"), name))


def summary(words: str) -> str:
    """Return the first line of a command's help. It is parsed from the file, as importing all of them takes long."""
    module, _, name = COMMANDS[words].partition(":")
    path = Path(__file__).parent / "commands" / (module.replace(".", "/") + ".py")
    function = next(node for node in ast.parse(path.read_text("utf-8")).body if getattr(node, "name", "") == name)
    return (ast.get_docstring(function) or "").partition("\n")[0]  # type: ignore[arg-type]


def overview(group: str = "") -> str:
    """Return the help of `sp`, or of a group: its commands with one line each."""
    inside = [words for words in COMMANDS if words.startswith(group and f"{group} ") and (group or " " not in words)]
    lines = {words.split()[-1]: summary(words) for words in inside} | ({} if group else GROUPS)
    width = shutil.get_terminal_size((80, 24)).columns
    commands = "\n".join(fill(f"  {name:<14}{text}", width, subsequent_indent=" " * 16) for name, text in lines.items())
    options = "\n\nOptions:\n  --version     Print the version and exit.\n  -h, --help    Show this help and exit."
    return (
        f"Usage: sp {group or '[OPTIONS]'} COMMAND [ARGS]...\n\n{GROUPS.get(group, HEAD)}\n\n"
        f"Commands:\n{commands}{'' if group else options}"
    )


def split_command(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Split arguments into the command or group that they begin with, and the rest; UsageError for neither."""
    words = argv[0]
    if words in GROUPS and len(argv) > 1 and argv[1] not in ("-h", "--help"):
        words = f"{words} {argv[1]}"
    if words not in COMMANDS and words not in GROUPS:
        group, _, name = words.rpartition(" ")
        known = [command.split()[-1] for command in (*COMMANDS, *GROUPS) if command.rpartition(" ")[0] == group]
        raise UsageError(f"sp {group}{' ' * bool(group)}has no command {short(name)!r}{known_names(name, known)}")
    return words, list(argv[1 + words.count(" ") :])


def call(argv: Sequence[str]) -> None:
    """Run the command that arguments name.

    Raises
    ------
    SpError
        The user can fix the cause.
    SystemExit
        The command ends with a status other than 0.
    """
    if not argv or argv[0] in ("-h", "--help"):
        return print(overview())
    if argv[0] == "--version":
        return print(f"sp {__version__}")
    words, rest = split_command(argv)
    if words in GROUPS:
        return print(overview(words))
    command = command_of(words)
    if {"-h", "--help"} & {*rest}:
        return print(command.help)
    from sp.commands.shell.lost_pages import exit_on_lost_pages
    from sp.kernels import device_errors
    from sp.plugins import find_plugin, load_installed

    with device_errors(), warnings_as_lines():
        values = command.parse(rest)  # before plugins are loaded, so that a typing error costs nothing
        for failure in load_installed():
            print(f"sp: skipped: {failure}", file=sys.stderr)
        for text in values["plugin"] or ():
            find_plugin(text).load()
        with exit_on_lost_pages():
            command.call(values)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings of `sp` as one line on stderr, without file and line, while the context is open."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, SpWarning):
                print(f"sp: warning: {message}", file=sys.stderr, flush=True)
            else:
                usual(message, category, *place, **options)

        warnings.showwarning = show
        yield


def main() -> None:
    """Run the `sp` command: errors are one line on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):  # for terminals, and names of files, that are not UTF-8
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        call(sys.argv[1:])
    except SpError as error:
        message = str(error)
    except MemoryError:
        message = "out of memory; use a shorter prompt, a lower --keep-ratio or smaller models"
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}; the command did not complete"
    except KeyboardInterrupt:
        print("sp: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    else:
        sys.exit(0)
    print(f"sp: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
