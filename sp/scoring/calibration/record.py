"""Calibrations as files: the heads of a model's file that retrieve, and the calibration stored for such a file."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from sp.errors import ConfigError, plain
from sp.folders import cache_folder
from sp.json_lines import OBJECT, TEXT, FieldType, is_whole, number, read_object, whole
from sp.models import ModelConfig, Retrieval
from sp.scoring.attention.heads import read_layers
from sp.trace import write_atomic

SCHEMA = "sp-calibration/1"
SHA256 = re.compile(r"[0-9a-f]{64}")
REDUCED = FieldType("max or mean", lambda value: value in ("max", "mean"))
FIELDS = {
    "sha256": FieldType(
        "64 hexadecimal digits", lambda value: isinstance(value, str) and bool(SHA256.fullmatch(value))
    ),
    "file": TEXT,
    "rotary": FieldType("none or post", lambda value: value in ("none", "post")),
    "over_heads": REDUCED,
    "over_queries": REDUCED,
    "depth": whole(1),
    "rank": number(0, 1),
    "top_5_percent": number(0, 1),
    "n": whole(1),
    "made": OBJECT,
    "scorer": TEXT.optional,
}
HEADS = FieldType(
    "an ascending list of numbers of heads",
    lambda row: isinstance(row, list) and row != [] and all(map(is_whole, row)) and min(row) >= 0
    and all(low < high for low, high in pairwise(row)),
)  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """The heads chosen for a file, and their recall on held-out needles.

    Attributes
    ----------
    sha256, file : str
        Hash of the GGUF file, and its name when it was measured, which is for people.
    heads : mapping of int to tuple of int
        Heads that count, by attention layer.
    rotary : {"none", "post"}
        Queries and keys without rotary embedding, or with it.
    rank, top_5_percent : float
        On held-out phrasings and kinds of text: median share of chunks ranked above the needle's, and share of needles
        whose chunk is among the first 5 % of all.
    n : int
        Questions of the measurement.
    made : mapping
        How it was measured, for people.
    over_heads, over_queries : {"max", "mean"}
        Reduction of the weights.
    scorer : str
        Scorer with the best recall with this file: `calibrated`, unless another was measured to be better.
    """

    sha256: str
    file: str
    heads: Mapping[int, tuple[int, ...]]
    rotary: Literal["none", "post"]
    rank: float
    top_5_percent: float
    n: int
    made: Mapping[str, Any] = field(default_factory=dict)
    over_heads: Literal["max", "mean"] = "max"
    over_queries: Literal["max", "mean"] = "max"
    scorer: str = "calibrated"

    @property
    def depth(self) -> int:
        """Number of layers to run."""
        return max(self.heads) + 1

    def as_dict(self) -> dict[str, Any]:
        """Return the record as its file has it."""
        return {
            "schema": SCHEMA,
            "sha256": self.sha256,
            "file": self.file,
            "scorer": self.scorer,
            "rotary": self.rotary,
            "over_heads": self.over_heads,
            "over_queries": self.over_queries,
            "depth": self.depth,
            "heads": {str(layer): list(heads) for layer, heads in sorted(self.heads.items())},
            "rank": round(self.rank, 4),
            "top_5_percent": round(self.top_5_percent, 4),
            "n": self.n,
            "made": dict(self.made),
        }

    def save(self, path: Path) -> None:
        """Write the file atomically: an older file is replaced only when the new one is complete."""
        write_atomic(path, f"{json.dumps(self.as_dict(), indent=1)}\n".encode())

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file that `save` wrote; ConfigError if it is missing, not a calibration, or of another schema."""
        try:
            record, rows = read_layers(path, "a calibration", SCHEMA, FIELDS, "heads", HEADS)
            heads = {layer: tuple(map(int, row)) for layer, row in rows.items()}
            if record["depth"] != max(heads) + 1:
                raise ConfigError(f"{path}: depth is {record['depth']}, and the last layer with heads is {max(heads)}")
        except ConfigError as error:
            raise ConfigError(f"{error}; make a calibration with sp calibrate") from None
        numbers = float(record["rank"]), float(record["top_5_percent"]), int(record["n"])
        reduction = record["over_heads"], record["over_queries"], record.get("scorer") or "calibrated"
        return cls(record["sha256"], record["file"], heads, record["rotary"], *numbers, record["made"], *reduction)

    def retrieval(self, config: ModelConfig) -> Retrieval:
        """Return the retrieval heads for a model of that file; ConfigError for heads that it does not have."""
        for layer, heads in self.heads.items():
            if layer not in config.attention_layers or heads[-1] >= config.heads:
                raise ConfigError(
                    f"the calibration of {plain(self.file, 60)} names heads that the file does not have "
                    f"(layer {layer}, head {heads[-1]}); run sp calibrate again"
                )
        options = self.rotary, self.over_heads, self.over_queries, True, self.sha256, self.scorer
        return Retrieval(tuple(sorted(self.heads.items())), *options)


SHIPPED = Path(str(files("sp") / "assets" / "calibrations"))


def folder() -> Path:
    """Return the folder of the calibrations that were made on this machine."""
    return cache_folder() / "calibrations"


def find_calibration(path: Path) -> Calibration | None:
    """Return a file's calibration, one made on this machine before one that ships; None if there is none.

    ConfigError: the file cannot be read, or its calibration is damaged.
    """
    sha256 = file_sha256(path)
    own = folder() / f"{sha256}.json"
    if own.exists():
        return Calibration.load(own)
    return shipped().get(sha256)


def keep_calibration(calibration: Calibration) -> Path | None:
    """Store a calibration and return its path, or None if the folder is not writable."""
    path = folder() / f"{calibration.sha256}.json"
    try:
        calibration.save(path)
    except OSError:
        return None
    return path


@cache
def shipped() -> dict[str, Calibration]:
    """Return the calibrations that ship, by the sha256 of their model's file."""
    calibrations = map(Calibration.load, sorted(SHIPPED.glob("*.json")))
    return {calibration.sha256: calibration for calibration in calibrations}


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal, cached as long as its path, size and time are the same.

    The hash of a model in several files is that of the first. ConfigError: the file cannot be read.
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
        record = read_object(note, "a hash")
        sha256 = record.pop("sha256", None)
        if record == facts and isinstance(sha256, str) and SHA256.fullmatch(sha256):
            return sha256
    except ConfigError:
        pass  # there is none yet, or it is damaged: compute it
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # without the note the next call computes the hash again
        write_atomic(note, f"{json.dumps(facts | {'sha256': sha256})}\n".encode())
    return sha256
