"""Folders with the files of the latest run: those of an earlier run are replaced or removed, all others stay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from sp.errors import ConfigError
from sp.json_lines import read_object
from sp.trace import write_atomic

LIST = ".sp-files.json"  # names and SHA-256 of the files that the latest run wrote into a folder


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, whose files replace those that an earlier run wrote into `folder`.

    Nothing changes in `folder` until the body ends without an error. Then files of the earlier run that were not
    written again are removed, unless someone has changed them.
    """
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    stage = Path(mkdtemp(prefix=".sp-", dir=folder))
    try:
        yield stage
        _replace(stage, folder)
    finally:
        rmtree(stage, ignore_errors=True)
        with suppress(OSError):  # fails where files were written, and only empty new folders are to go
            for parent in created:
                parent.rmdir()


def _replace(stage: Path, folder: Path) -> None:
    former, digests = _former_digests(folder), {}
    for path in sorted(stage.iterdir()):
        digests[path.name] = _digest(path)
        path.replace(folder / path.name)
    for name, digest in former.items():
        path = folder / name
        if name not in digests and path.is_file() and not path.is_symlink() and _digest(path) == digest:
            path.unlink()
    write_atomic(folder / LIST, (json.dumps(digests, indent=1) + "\n").encode())


def _former_digests(folder: Path) -> dict[str, str]:
    """Return the digests by name of the files of an earlier run; empty without a valid list.

    Names that lead out of the folder are ignored, as anyone may have written the list.
    """
    try:
        digests = read_object(folder / LIST, "a list of files")
    except ConfigError:
        return {}
    return {name: digest for name, digest in digests.items() if isinstance(digest, str) and _is_plain_name(name)}


def _is_plain_name(name: str) -> bool:
    return Path(name).name == name and not name.startswith(".") and "\0" not in name


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
