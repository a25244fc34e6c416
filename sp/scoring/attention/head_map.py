"""HeadMap: how well each attention head of a model retrieves, measured once and kept as a small JSON file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.checked import OBJECT, TEXT, Wanted, is_number
from sp.errors import ConfigError, short
from sp.models import Model
from sp.ops.array_module import on_host
from sp.scoring.layer_record import read_layers

SCHEMA = "sp-head-map/1"
FIELDS = {"model": TEXT, "made": OBJECT}
SCORES = Wanted(
    "a list of numbers from 0 to 1", lambda row: isinstance(row, list) and row != [] and all(map(_share, row))
)
EMBEDDED_MAP = Path(str(files("sp") / "assets" / "drafter_heads.json"))


def _share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


@dataclass(frozen=True)
class HeadMap:
    """Retrieval score of every head."""

    model: str  # `model_key` of the model they belong to
    scores: Mapping[int, tuple[float, ...]]  # by attention layer, one score a head, from 0 to 1
    made: Mapping[str, Any] = field(default_factory=dict)  # how they were measured; for people

    def save(self, path: Path) -> None:
        """Write the file; one line a layer."""
        lines = [f'  "{layer}": {json.dumps([round(s, 4) for s in row])}' for layer, row in self.scores.items()]
        head = json.dumps({"schema": SCHEMA, "model": self.model, "made": dict(self.made)}, indent=1)
        path.write_text(head[: head.rindex("}")].rstrip() + ',\n "scores": {\n' + ",\n".join(lines) + "\n }\n}\n")

    @classmethod
    def load(cls, path: Path) -> HeadMap:
        """Read a file that `save` wrote.

        Raises
        ------
        ConfigError
            If it is missing, no map, or of another schema.
        """
        try:
            found, rows = read_layers(path, "a map of heads", SCHEMA, FIELDS, "scores", SCORES)
        except ConfigError as error:
            raise ConfigError(f"{error}; make a map of heads with sp heads") from None
        return cls(found["model"], {layer: tuple(map(float, row)) for layer, row in rows.items()}, found["made"])

    def chosen(self, model: Model, threshold: float) -> dict[int, Floats]:
        """One for a head that scores above the threshold and zero for others, by layer that has such a head.

        Raises
        ------
        ConfigError
            If the map is of another model, or no head scores as much.
        """
        if self.model != model_key(model):
            raise ConfigError(
                f"the map of heads is of another model ({short(self.model)}, not {model_key(model)}); "
                "measure this one with sp heads and name the file: scorer.map=FILE"
            )
        heads, layers = model.config.heads, model.config.layers
        if any(len(row) != heads or not layer < layers for layer, row in self.scores.items()):
            raise ConfigError(f"the map of heads must have {heads} scores of each of some layers below {layers}")
        most = max(max(row) for row in self.scores.values())
        if most <= threshold:
            raise ConfigError(f"no head has a retrieval score above {threshold}; the best has {most:.3f}")
        picked = {layer: np.array([s > threshold for s in row], np.float32) for layer, row in self.scores.items()}
        return {layer: row for layer, row in picked.items() if row.any()}


def model_key(model: Model) -> str:
    """A short name that stays the same when matrices are quantised: shape, and a hash of the last norm.

    Returns str: ``architecture-layers-heads-hash``.
    """
    norm = np.ascontiguousarray(on_host(model.trunk.output_norm), np.float32)
    digest = hashlib.sha256(norm.tobytes()).hexdigest()[:12]
    c = model.config
    return f"{c.architecture}-{c.layers}-{c.heads}-{digest}"
