"""ScorerFile: what a trained scorer learnt, as a small .safetensors file that belongs to one drafter."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError, ModelError, plain
from sp.models import Model
from sp.models.file.safetensors_file import SafetensorsFile
from sp.scoring.attention.head_map import model_key
from sp.values import shown

SCHEMA = "sp-scorer/1"
EMBEDDED_SCORER = Path(str(files("sp") / "assets" / "scorer.safetensors"))
MOST_BYTES = 64 << 20
"""Of a file; the largest head on a drafter of 0.6B takes a hundredth."""


@dataclass(frozen=True)
class ScorerFile:
    """Weights and where they came from.

    Parameters
    ----------
    kind : str
        Name of the scorer they are for.
    model : str
        `model_key` of the drafter whose attention or hidden states they weigh.
    arrays : dict of str to float32 array
    options : dict
        The scorer's options of learning, in force again when it scores.
    made : dict
        How it was trained: tasks, tasks left out, labels, seed, date; for people and tables.
    """

    kind: str
    model: str
    arrays: Mapping[str, Floats]
    options: Mapping[str, Any]
    made: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the file in one piece: what stood there before stays until the new one is complete."""
        from safetensors.numpy import save

        told = {"kind": self.kind, "model": self.model}
        objects = {name: json.dumps(dict(getattr(self, name)), sort_keys=True) for name in ("options", "made")}
        arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in self.arrays.items()}
        data = save(arrays, {"schema": SCHEMA, **told, **objects})
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_bytes(data)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> ScorerFile:
        """Read a file that `save` wrote.

        Raises
        ------
        ConfigError
            If it is missing, too large, damaged, or no trained scorer of this version.
        """
        from safetensors import SafetensorError, safe_open

        try:
            size = path.stat().st_size
            if size > MOST_BYTES:
                raise ConfigError(f"{path}: {size:,} bytes are too many for a trained scorer; is it a model?")
            with safe_open(path, framework="numpy") as opened:
                told = opened.metadata() or {}
            if told.get("schema") != SCHEMA:
                found = f"schema {shown(told['schema'])}" if "schema" in told else "no schema"
                raise ConfigError(f"{path}: no trained scorer ({found}, not {SCHEMA!r}); make one with sp train scorer")
            stored = SafetensorsFile.open(path)
            arrays = {name: stored.weight(name).dense().copy() for name in sorted(stored.tensors)}
            options, made = (json.loads(told[name]) for name in ("options", "made"))
            if not (isinstance(options, dict) and isinstance(made, dict)):
                raise ValueError
            if not all(np.isfinite(array).all() for array in arrays.values()):
                raise ConfigError(f"{path}: holds weights that are no numbers; make it anew with sp train scorer")
            return cls(told["kind"], told["model"], arrays, options, made)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}; make one with sp train scorer") from None
        except (SafetensorError, ModelError, ValueError, KeyError, RecursionError) as error:
            raise ConfigError(
                f"{path}: no trained scorer ({type(error).__name__}); make one with sp train scorer"
            ) from None

    def check(self, path: Path, kind: str, model: Model) -> None:
        """ConfigError unless the file is of a kind and belongs to a model."""
        own, here = plain(self.kind, 40), self.model == model_key(model)
        if self.kind == kind and here:
            return
        train = f"train some for this drafter with sp train scorer (kind: {kind}) and name them: scorer.weights=FILE"
        instead = f", or use --scorer {own}" if here else ""
        if path == EMBEDDED_SCORER and self.kind != kind:
            raise ConfigError(f"scorer {kind} comes without weights; {train}{instead}")
        if path == EMBEDDED_SCORER:
            raise ConfigError(f"scorer {kind} comes with weights for the embedded drafter alone; {train}")
        if self.kind != kind:
            raise ConfigError(f"{path}: weights of scorer {own}, not {kind}; {train}{instead}")
        other = f"{plain(self.model, 60)}, not {model_key(model)}"
        raise ConfigError(f"{path}: trained for another drafter ({other}); {train}")


def shipped(kind: str) -> str:
    """Whether weights for a trained scorer come with `sp`, and for which drafter, in a sentence.

    Examples
    --------
    >>> shipped("probe"), shipped("lines")
    ('With weights for the embedded drafter.', 'Without weights: sp train scorer makes some.')
    """
    if EMBEDDED_SCORER.exists() and ScorerFile.load(EMBEDDED_SCORER).kind == kind:
        return "With weights for the embedded drafter."
    return "Without weights: sp train scorer makes some."
