"""Download a package as the user's own pip does: from their index, through their proxy, by their settings."""

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


class Steps:
    """Turns bytes there are by now into steps that add up to the whole and never go back.

    Examples
    --------
    >>> came = []
    >>> steps = Steps(came.append, 10)
    >>> for nbytes in (3, 2, 20):
    ...     steps.reach(nbytes)
    >>> came
    [3, 7]
    """

    def __init__(self, advance: Callable[[int], None], total: int) -> None:
        self._advance, self._total, self._done = advance, total, 0

    def reach(self, nbytes: int) -> None:
        """There are so many bytes by now."""
        step = min(nbytes, self._total) - self._done
        if step > 0:
            self._done += step
            self._advance(step)


def download(
    requirement: str, folder: Path, watch: Callable[[int], None], *, sha256: str = "", source: bool = False
) -> Path:
    """Download one package, without what it depends on, and return the path of its archive.

    Parameters
    ----------
    requirement : str
        The package with its version.
    folder : Path
        An empty folder for the archive, and for what pip writes on the way.
    watch : callable
        Called now and then with the bytes of the archive that have come.
    sha256 : str, optional
        Of the archive; pip checks it before it looks inside.
    source : bool
        Whether it is the source distribution and not the wheel; pip prepares the metadata of one, for which it may get
        the package's build backend.

    Raises
    ------
    FetchError
        Without pip, without a network, or where the index has no such archive.
    """
    place, log, wanted = folder / "archive", folder / "log", folder / "requirement.txt"
    kind = f"--no-binary={requirement.partition('==')[0]}" if source else "--only-binary=:all:"
    options = ("--no-deps", kind, "--no-cache-dir", "--no-input", "--progress-bar=off", "--dest", str(place))
    named = [requirement]
    if sha256:
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        named = ["--require-hashes", "--requirement", str(wanted)]
    command = [*pip_command(), "download", *options, *named]
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                watch(_largest(folder, ".tar.gz" if source else ".whl"))
        finally:
            process.terminate()  # an interrupted one; of one that has ended nothing is left
            process.wait()
    found = list(place.glob("*"))
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


def _largest(folder: Path, suffix: str) -> int:
    """Size of the largest archive below a folder, where files come and go."""
    try:
        return max((path.stat().st_size for path in folder.rglob(f"*{suffix}")), default=0)
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
