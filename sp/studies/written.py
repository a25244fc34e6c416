"""Folders that hold what one run wrote and nothing an earlier run left: only files that we wrote are removed."""

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

LIST = ".sp-files.json"  # names and SHA-256 of what was written into a folder last


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder to write files into, which take the place of those that an earlier run wrote so: nothing changes in
    `folder` until the body is done; then old ones not written anew are removed, unless they were changed since."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    stage = Path(mkdtemp(prefix=".sp-", dir=folder))
    try:
        yield stage
        _replace(stage, folder)
    finally:
        rmtree(stage, ignore_errors=True)
        with suppress(OSError):  # where something was written
            for each in new:
                each.rmdir()


def _replace(stage: Path, folder: Path) -> None:
    before, written = _listed(folder), {}
    for path in sorted(stage.iterdir()):
        written[path.name] = _digest(path)
        path.replace(folder / path.name)
    for name, digest in before.items():
        path = folder / name
        if name not in written and path.is_file() and not path.is_symlink() and _digest(path) == digest:
            path.unlink()
    write_atomic(folder / LIST, (json.dumps(written, indent=1) + "\n").encode())


def _listed(folder: Path) -> dict[str, str]:
    """What was written before; nothing where no list is, or one that is not ours. Only names of this very folder."""
    try:
        found = read_object(folder / LIST, "a list of files")
    except ConfigError:
        return {}
    return {name: digest for name, digest in found.items() if isinstance(digest, str) and _plain(name)}


def _plain(name: str) -> bool:
    return Path(name).name == name and not name.startswith(".") and "\0" not in name


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
