"""Scripts on a device that only counts, each in a process of its own: forks of one that has imported `sp` already.

A process that starts anew takes longer to import than most of these scripts take to run.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

MODELS = Path(__file__).parent / "models"
"""Where `dry_device` and `dry_memory` lie; a script is given it first."""

USED = ("sp.session", "sp.scoring", "sp.models.synthetic.shapes", "sp.decode.speculate", "sp.ops.sampling.sample")
"""What most scripts import; none of it looks for a device before it is asked."""


def walked(script: str, *arguments: str) -> str:
    """What a script prints; it must end well."""
    server = forking()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        asked = {"script": script, "argv": ["-c", str(MODELS), *arguments], "out": str(out), "err": str(err)}
        print(json.dumps(asked), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        assert code == 0, err.read_text()[-3000:]
        return out.read_text()


@cache
def forking() -> subprocess.Popen[str]:
    """The process that forks, ended and waited for when the tests are over."""
    command = [sys.executable, __file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)
    return server


def serve() -> None:
    """Fork for every line; what the fork is to run it does as `python -c` would."""
    sys.path.insert(0, str(MODELS))
    import dry_nccl  # noqa: F401
    import pytest  # noqa: F401

    import sp.ops.matmul

    inside = (name for _, name, _ in pkgutil.iter_modules(sp.ops.matmul.__path__, "sp.ops.matmul."))
    for name in (*USED, *inside):  # each fork would take half a second to import them
        import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        if (child := os.fork()) == 0:
            run(asked)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run(asked: dict[str, str]) -> None:
    """Run a script with files for what it prints, and nothing to read."""
    for number, path in enumerate((os.devnull, asked["out"], asked["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.argv = asked["argv"]
    exec(compile(asked["script"], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    serve()
