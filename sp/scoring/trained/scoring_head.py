"""ScoringHead: projections that were trained for one drafter's file, in a .safetensors file below a megabyte."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError, ModelError, plain
from sp.models import ModelConfig
from sp.models.file.safetensors_file import SafetensorsFile
from sp.trace import write_atomic
from sp.values import shown

SCHEMA = "sp-scoring-head/1"
MOST_BYTES = 16 << 20
"""Of a file: that of a drafter of 8B would have some 6 million."""
SHIPPED = Path(str(files("sp") / "assets" / "scoring_heads"))
"""Folder of those that come with sp."""
NAME = re.compile(r"(query|key|gate)\.(0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, eq=False)
class ScoringHead:
    """Weights of `sp.scoring.trained.late_interaction`, by attention layer.

    Parameters
    ----------
    drafter : str
        sha256 of the GGUF file that they were trained on.
    query : dict of int to float32 (heads x head_dim, rank)
    key : dict of int to float32 (2 x kv_heads x head_dim, rank)
        Rows of keys, and then of values.
    gate : dict of int to float32 (heads x head_dim,)
        Of the layers that `query` has.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> head = ScoringHead("0" * 64, {3: rng.normal(size=(32, 6))}, {1: rng.normal(size=(16, 6))}, {3: np.ones(32)})
    >>> head.rank, head.depth
    (6, 4)
    """

    drafter: str
    query: Mapping[int, Floats]
    key: Mapping[int, Floats]
    gate: Mapping[int, Floats]

    @property
    def rank(self) -> int:
        """Dimensions of the space."""
        return int(next(iter(self.key.values())).shape[1])

    @property
    def depth(self) -> int:
        """Layers to run."""
        return max((*self.query, *self.key)) + 1

    def check(self, config: ModelConfig, where: str) -> None:
        """ConfigError, which begins with `where`, unless layers and shapes are those of a model."""
        wide, deep = config.heads * config.head_dim, 2 * config.kv_heads * config.head_dim
        wanted = {"query": (wide, self.rank), "key": (deep, self.rank), "gate": (wide,)}
        for name, shape in wanted.items():
            for layer, array in getattr(self, name).items():
                if layer not in config.attention_layers or array.shape != shape:
                    raise ConfigError(
                        f"{where}: of another drafter: {name} of layer {layer} has shape {array.shape}, and this "
                        f"{config.architecture} would need {shape} of layers {shown(config.attention_layers)}"
                    )

    def save(self, path: Path, made: Mapping[str, str]) -> None:
        """Write the file in one piece, all of it in float16; `made` says how it was trained, for people."""
        from safetensors.numpy import save

        parts = {"query": self.query, "key": self.key, "gate": self.gate}
        arrays = {f"{name}.{layer}": a.astype(np.float16) for name, part in parts.items() for layer, a in part.items()}
        write_atomic(path, save(arrays, {"schema": SCHEMA, "drafter": self.drafter, **made}))

    @classmethod
    def load(cls, path: Path) -> ScoringHead:
        """Read a file that `save` wrote.

        Raises
        ------
        ConfigError
            If it is missing, too large, damaged, or no head of this version.
        """
        from safetensors import SafetensorError, safe_open

        try:
            if (size := path.stat().st_size) > MOST_BYTES:
                raise ConfigError(f"{path}: {size:,} bytes are too many for a scoring head; is it a model?")
            if not path.is_file():
                raise ConfigError(f"{path}: no file; name one of a scoring head with scorer.weights")
            with safe_open(path, framework="numpy") as opened:
                told = opened.metadata() or {}
            if told.get("schema") != SCHEMA:
                found = f"schema {shown(told['schema'])}" if "schema" in told else "no schema"
                raise ConfigError(
                    f"{path}: no scoring head ({found}, not {SCHEMA!r}); name another with scorer.weights"
                )
            stored = SafetensorsFile.open(path)
            parts: dict[str, dict[int, Floats]] = {"query": {}, "key": {}, "gate": {}}
            for name in sorted(stored.tensors):
                part = NAME.fullmatch(name)
                if part is None:
                    raise ConfigError(f"{path}: no scoring head: {plain(name, 40)} is none of its arrays")
                array = np.ascontiguousarray(stored.weight(name).dense(), np.float32)
                if not np.isfinite(array).all():
                    raise ConfigError(f"{path}: {plain(name, 40)} has weights that are no numbers; get it again")
                parts[part[1]][int(part[2])] = array
            head = cls(told["drafter"], parts["query"], parts["key"], parts["gate"])
            ranks = {a.shape[1] for part in (head.query, head.key) for a in part.values()}
            if not head.key or not head.query or set(head.query) != set(head.gate) or len(ranks) != 1 or 0 in ranks:
                raise ConfigError(f"{path}: no scoring head: its layers or ranks do not fit together; get it again")
            return head
        except OSError as error:
            reason = error.strerror or "cannot be read"
            raise ConfigError(f"{path}: {reason}; name a file with scorer.weights") from None
        except (SafetensorError, ModelError, LookupError, ValueError) as error:
            raise ConfigError(f"{path}: no scoring head ({type(error).__name__}); get it again") from None


@cache
def _loaded(path: Path, mtime: int) -> ScoringHead:
    return ScoringHead.load(path)


def opened(path: Path) -> ScoringHead:
    """`ScoringHead.load`, remembered as long as the file stays as it is."""
    try:
        return _loaded(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):  # no such file, or a name that no file can have
        return ScoringHead.load(path)  # which says what is wrong


@cache
def shipped() -> dict[str, Path]:
    """Files that ship with sp, by the sha256 of their drafters."""
    return {opened(path).drafter: path for path in sorted(SHIPPED.glob("*.safetensors"))}


def head_for(config: ModelConfig, weights: str = "") -> ScoringHead:
    """The head in a file, or that which ships for a model's file, checked against its shape.

    Parameters
    ----------
    config : ModelConfig
        Whose `retrieval` says which file it is.
    weights : str
        Path of a file of a head. The drafter's own file may then be another of the same shape, such as the same model
        in another format.

    Raises
    ------
    ConfigError
        There is none, or it is of another drafter.
    """
    if weights:
        head, where = opened(Path(weights)), weights
    else:
        sha256 = config.retrieval.sha256 if config.retrieval else ""
        if sha256 not in shipped():
            raise ConfigError(
                "scorer late_interaction has no trained head for this drafter; take --scorer calibrated, or name a "
                "file of one: scorer.weights=FILE"
            )
        head, where = opened(shipped()[sha256]), shipped()[sha256].name
    head.check(config, where)
    return head
