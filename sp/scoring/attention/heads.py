"""Scorers that go by heads which are known to retrieve: of a map, or of the calibration of a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError, short
from sp.json_lines import OBJECT, TEXT, Wanted, check, check_each, is_number, read_object
from sp.models import Model, ModelConfig, Retrieval
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.importance import attention_rows
from sp.ops.attention.kv_pages import PagedKV
from sp.scoring.attention.attention import AttentionScorer, Fold, TailScorer, padded
from sp.scoring.base import Importance, ReadingScorer, ScoreRequest, register_scorer

LAYER = re.compile(r"[0-9]{1,4}")


def read_layers(
    path: Path, what: str, schema: str, fields: Mapping[str, Wanted], lists: str, want: Wanted
) -> tuple[dict[str, Any], dict[int, list[Any]]]:
    """Read a record; its fields as the file has them, and one of them, lists by layer, by the layers' numbers.

    `what`: it is, for messages, as in ``"a calibration"``; `fields`: what its other fields must be; `lists`: field that
    is an object: number of a layer to a list; ConfigError: it is missing, something else, or of another schema.

    >>> from tempfile import TemporaryDirectory
    >>> from sp.json_lines import LIST
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.json"
    ...     _ = path.write_text('{"schema": "x/1", "rows": {"3": [1, 2]}}')
    ...     read_layers(path, "a record", "x/1", {}, "rows", LIST)[1]
    {3: [1, 2]}
    """
    found = read_object(path, what)
    check(found, {"schema": TEXT, **fields, lists: OBJECT}, str(path))
    if found["schema"] != schema:
        raise ConfigError(f"{path}: {what} of schema {short(found['schema'])!r}; this version reads {schema!r}")
    check_each(found[lists], want, f"{path}: {lists}")
    if not found[lists] or not all(LAYER.fullmatch(layer) for layer in found[lists]):
        raise ConfigError(f"{path}: {lists} must have a list for each of some layers, by their numbers")
    return found, {int(layer): row for layer, row in found[lists].items()}


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
        """Read a file that `save` wrote. ConfigError: if it is missing, no map, or of another schema."""
        try:
            found, rows = read_layers(path, "a map of heads", SCHEMA, FIELDS, "scores", SCORES)
        except ConfigError as error:
            raise ConfigError(f"{error}; make a map of heads with sp heads") from None
        return cls(found["model"], {layer: tuple(map(float, row)) for layer, row in rows.items()}, found["made"])

    def chosen(self, model: Model, threshold: float) -> dict[int, Floats]:
        """One for a head that scores above the threshold and zero for others, by layer that has such a head.
        ConfigError: if the map is of another model, or no head scores as much.
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
    """A short name that stays the same when matrices are quantised: shape, and a hash of the last norm. Returns str:
    ``architecture-layers-heads-hash``.
    """
    norm = np.ascontiguousarray(on_host(model.trunk.output_norm), np.float32)
    digest = hashlib.sha256(norm.tobytes()).hexdigest()[:12]
    c = model.config
    return f"{c.architecture}-{c.layers}-{c.heads}-{digest}"


@register_scorer("retrieval_heads")
@dataclass(frozen=True)
class RetrievalHeadsScorer(AttentionScorer):
    """`tail` over the heads of a map whose retrieval score is above a threshold; all others count for nothing.

    Parameters
    ----------
    map : str
        File that ``sp heads`` made of this drafter; left empty, the map of the embedded one.
    threshold : float
        Heads at or below it are left out.

    Notes
    -----
    Retrieval heads: Wu et al. (arXiv 2404.15574), with the threshold of that paper.
    """

    over_heads: Literal["max", "mean"] = "mean"
    map: str = ""
    threshold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold < 1:
            raise ConfigError(f"threshold must be at least 0 and below 1, not {self.threshold}")

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the chosen heads' attention."""
        found = HeadMap.load(Path(self.map) if self.map else EMBEDDED_MAP)
        chosen = found.chosen(request.model, self.threshold)
        if not set(chosen) & set(self.scored_layers(request.model.config)):
            raise ConfigError(f"no retrieval head is in a layer that counts; they are in {sorted(chosen)}")
        fold = Fold(self.reduction, request.by_head)

        def take(layer: int, q: Floats, keys: PagedKV) -> None:
            if layer in chosen:
                weights = attention_rows(q, keys)
                weights *= array_module(weights).asarray(chosen[layer])[:, None, None]
                fold.add(weights)

        return fold.importance(self.read(request, take))


LAST_QUERIES = 32  # tokens at the end of a prompt that ask where no question is known
DEPTH = 0.6  # share of the layers before the second of the two that find most, untrained and unmeasured


@register_scorer("calibrated")
@dataclass(frozen=True)
class CalibratedScorer(ReadingScorer):
    """Attention from the question's tokens in the layers and heads that retrieve; the drafter stops behind them.

    Which they are, and whether their queries and keys are rotated, a calibration of the drafter's file says, see
    `Retrieval`; without one it is `rule_of_thumb`. A token counts as much as the query and the head that looks at it
    hardest. Tokens behind the question have no part in it. Where a prompt names no question its last 32 tokens ask.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    calibrate : {"auto", "never"}
        Whether a file that has no calibration gets one when it is first used.

    Notes
    -----
    Un-rotated scores of one middle layer find facts that the maximum over all heads misses: see
    ``docs/results/real.md``. Retrieval heads: Wu et al. (arXiv 2404.15574).
    """

    retrieves: ClassVar[bool] = True
    keeps: ClassVar[bool] = True

    calibrate: Literal["auto", "never"] = "auto"

    def reader(self, retrieval: Retrieval) -> TailScorer:
        """How the drafter reads."""
        return TailScorer(
            sparse=self.sparse,
            queries="question",
            rotary=retrieval.rotary,
            order="heads,queries,pool",
            over_heads=retrieval.over_heads,
            over_queries=retrieval.over_queries,
            pool=1,
            layers=retrieval.layers,
        )

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Up to the last layer that counts."""
        return retrieval_of(config).depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter's first layers once over the prompt and reduce what its chosen heads see."""
        model, asking = request.model, up_to_question(request)
        retrieval = retrieval_of(model.config)
        reader = self.reader(retrieval)
        fold = Fold(reader.reduction, request.by_head)
        whole = all(len(heads) == model.config.heads for _, heads in retrieval.heads)
        chosen = {layer: _mask(heads, model.config.heads) for layer, heads in retrieval.heads}

        def take(layer: int, q: Floats, keys: PagedKV) -> None:
            if whole:
                fold.add_layer(q, keys, causal=True)
                return
            weights = attention_rows(q, keys)
            weights *= array_module(weights).asarray(chosen[layer])[:, None, None]
            fold.add(weights)

        like = (fold.reduction, fold.by_head) if whole and fold.reduction.in_kernel else None
        return padded(fold.importance(reader.read(asking, take, like)), len(request.ids))


def retrieval_of(config: ModelConfig) -> Retrieval:
    """What is known of a model, or else the rule."""
    return config.retrieval or rule_of_thumb(config)


def rule_of_thumb(config: ModelConfig) -> Retrieval:
    """All heads, un-rotated, of the two attention layers around 60 % of the depth, of those without a window: the first
    from there on, and the one before it. Of a hybrid whose every fourth layer attends these are 11 and 15 of 24.
    """
    layers = config.global_layers
    if not layers:
        raise ConfigError("scorer calibrated reads attention, and no layer of the drafter has any; take another scorer")
    from_here = [at for at, layer in enumerate(layers) if layer >= round(DEPTH * config.layers)]
    last = max(from_here[0] if from_here else len(layers) - 1, min(1, len(layers) - 1))
    heads = tuple(range(config.heads))
    return Retrieval(tuple((layer, heads) for layer in layers[max(last - 1, 0) : last + 1]), "none", measured=False)


def up_to_question(request: ScoreRequest) -> ScoreRequest:
    """The request up to the last token of its question; where it names none, its last tokens are taken for it."""
    n = len(request.ids)
    end = n if request.asked is None else min(request.asked, n)
    question = request.question
    if question.any():
        end = int(np.flatnonzero(question)[-1]) + 1
    else:
        question = (np.arange(n) >= end - LAST_QUERIES) & (np.arange(n) < end)
    return replace(
        request,
        ids=request.ids[:end],
        positions=request.positions[:end],
        question=question[:end],
        needle=request.needle[:end],
        spans=None if request.spans is None else request.spans[:end],
        protected=None if request.protected is None else request.protected[:end],
    )


def _mask(heads: tuple[int, ...], count: int) -> Floats:
    """One for each of the heads, of so many."""
    mask = np.zeros(count, np.float32)
    mask[list(heads)] = 1
    return mask
