"""A model file that is shortened while its weights are in use: one line in place of a bus error."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SAID = b"sp: error: a model file was shortened while it was in use, or its disk has failed; mend it and start again\n"
WRONG = 2


@contextmanager
def lost_pages_told() -> Iterator[None]:
    """Inside, the process ends with a line where memory is a page of a file that is gone. A handler of Python's own
    would not do: it runs after the instruction, which never ends. That threads which compute wait without the
    interpreter's lock lets this one have it, whichever thread met the page.
    """
    if not hasattr(signal, "SIGBUS"):
        yield
        return
    import ctypes

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)

    def told(_: int) -> None:
        os.write(2, SAID)
        os._exit(WRONG)

    handler, install = kind(told), ctypes.CDLL(None).signal
    install.argtypes, install.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = install(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        install(signal.SIGBUS, before)
