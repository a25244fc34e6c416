"""Report a model file that is truncated while its weights are in use, in one line in place of a bus error."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

MESSAGE = (
    b"sp: error: a model file was truncated while in use, or its disk has failed; restore the file and start again\n"
)
EXIT_STATUS = 2


@contextmanager
def exit_on_lost_pages() -> Iterator[None]:
    """Exit with one line if a memory-mapped page of a file is gone (SIGBUS), while the context is open."""
    if not hasattr(signal, "SIGBUS"):
        yield
        return
    import ctypes

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)

    def report_and_exit(_: int) -> None:
        os.write(2, MESSAGE)
        os._exit(EXIT_STATUS)

    # Not `signal.signal`: a Python handler runs after the current instruction, and the faulting one never ends. The C
    # handler needs the interpreter's lock; threads that compute have released it, so it is free whichever one faults.
    handler, install = kind(report_and_exit), ctypes.CDLL(None).signal

    install.argtypes, install.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = install(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        install(signal.SIGBUS, before)
