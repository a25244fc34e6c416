"""Calibrations by the file they belong to: those that ship with sp, and those that were made on this machine."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from sp.errors import ConfigError
from sp.folders import cache_folder
from sp.json_lines import read_object
from sp.scoring.calibration.record import SHA256, Calibration

SHIPPED = Path(str(files("sp") / "assets" / "calibrations"))


def folder() -> Path:
    """Where calibrations made on this machine are kept."""
    return cache_folder() / "calibrations"


def find_calibration(path: Path) -> Calibration | None:
    """That of a file, one made on this machine before one that ships; None if there is none.

    ConfigError: the file cannot be read, or its calibration is damaged.
    """
    sha256 = file_sha256(path)
    own = folder() / f"{sha256}.json"
    if own.exists():
        return Calibration.load(own)
    return shipped().get(sha256)


def keep_calibration(calibration: Calibration) -> Path | None:
    """Keep one for its file; where, or None if nothing can be written there."""
    path = folder() / f"{calibration.sha256}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        calibration.save(path)
    except OSError:
        return None
    return path


@cache
def shipped() -> dict[str, Calibration]:
    """Those that ship, by the sha256 of their files."""
    found = map(Calibration.load, sorted(SHIPPED.glob("*.json")))
    return {each.sha256: each for each in found}


def file_sha256(path: Path) -> str:
    """sha256 of a file, in hexadecimal, remembered as long as the file keeps its place, size and time.

    Of a model in several files it is that of the first.

    ConfigError: the file cannot be read.
    """
    try:
        path = path.resolve()
        facts = path.stat()
        return _sha256(path, facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}; check the path") from None


@cache
def _sha256(path: Path, size: int, mtime: int) -> str:
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
    note = folder() / "hashes" / f"{key}.json"
    facts = {"path": str(path), "size": size, "mtime_ns": mtime}
    try:
        held = read_object(note, "a hash")
        sha256 = held.pop("sha256", None)
        if held == facts and isinstance(sha256, str) and SHA256.fullmatch(sha256):
            return sha256
    except ConfigError:
        pass  # none yet, or damaged: it is made anew
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        beside = note.with_name(f".{note.name}.{os.getpid()}")
        beside.write_text(json.dumps(facts | {"sha256": sha256}) + "\n")
        beside.replace(note)
    except OSError:
        pass  # it is only slower next time
    return sha256
