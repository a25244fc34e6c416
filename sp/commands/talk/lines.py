"""Lines that are typed or piped in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from sp.errors import PromptError


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
