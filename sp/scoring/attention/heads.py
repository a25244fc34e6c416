"""Scorers by the attention of retrieval heads, which a map of heads or the calibration of a file names."""

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
from sp.json_lines import OBJECT, TEXT, FieldType, check, check_each, is_number, read_object
from sp.models import Model, ModelConfig, Retrieval
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.importance import attention_rows
from sp.ops.attention.kv_pages import PagedKV
from sp.scoring.attention.attention import AttentionScorer, Fold, TailScorer, padded
from sp.scoring.base import Importance, ReadingScorer, ScoreRequest, register_scorer
from sp.trace import write_atomic

LAYER = re.compile(r"[0-9]{1,4}")


def read_layers(
    path: Path, kind: str, schema: str, fields: Mapping[str, FieldType], lists: str, want: FieldType
) -> tuple[dict[str, Any], dict[int, list[Any]]]:
    """Read a record from a file, and one of its fields, an object of lists by layer, with integers as keys.

    `kind` names the record in messages, as in ``"a calibration"``; `fields` are the checks of its other fields; `lists`
    is the field with an object from a layer's number to a list. ConfigError: the file is missing, something else, or of
    another schema.

    >>> from tempfile import TemporaryDirectory
    >>> from sp.json_lines import LIST
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.json"
    ...     _ = path.write_text('{"schema": "x/1", "rows": {"3": [1, 2]}}')
    ...     read_layers(path, "a record", "x/1", {}, "rows", LIST)[1]
    {3: [1, 2]}
    """
    record = read_object(path, kind)
    check(record, {"schema": TEXT, **fields, lists: OBJECT}, str(path))
    if record["schema"] != schema:
        raise ConfigError(f"{path}: {kind} of schema {short(record['schema'])!r}; this version supports {schema!r}")
    check_each(record[lists], want, f"{path}: {lists}")
    if not record[lists] or not all(LAYER.fullmatch(layer) for layer in record[lists]):
        raise ConfigError(f"{path}: {lists} must be an object from layer numbers to lists, and not empty")
    return record, {int(layer): row for layer, row in record[lists].items()}


SCHEMA = "sp-head-map/1"
FIELDS = {"model": TEXT, "made": OBJECT}
SCORES = FieldType(
    "a list of numbers from 0 to 1", lambda row: isinstance(row, list) and row != [] and all(map(_share, row))
)
EMBEDDED_MAP = Path(str(files("sp") / "assets" / "drafter_heads.json"))


def _share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


@dataclass(frozen=True)
class HeadMap:
    """Retrieval scores of the heads of a model."""

    model: str  # `model_key` of the model
    scores: Mapping[int, tuple[float, ...]]  # by attention layer, one score a head, from 0 to 1
    made: Mapping[str, Any] = field(default_factory=dict)  # how they were measured; for people

    def save(self, path: Path) -> None:
        """Write the file, one line per layer."""
        lines = [f'  "{layer}": {json.dumps([round(s, 4) for s in row])}' for layer, row in self.scores.items()]
        head = json.dumps({"schema": SCHEMA, "model": self.model, "made": dict(self.made)}, indent=1)
        text = head[: head.rindex("}")].rstrip() + ',\n "scores": {\n' + ",\n".join(lines) + "\n }\n}\n"
        write_atomic(path, text.encode())

    @classmethod
    def load(cls, path: Path) -> HeadMap:
        """Read a file that `save` wrote; ConfigError if it is missing, not a map, or of another schema."""
        try:
            record, rows = read_layers(path, "a map of heads", SCHEMA, FIELDS, "scores", SCORES)
        except ConfigError as error:
            raise ConfigError(f"{error}; make a map of heads with sp heads") from None
        return cls(record["model"], {layer: tuple(map(float, row)) for layer, row in rows.items()}, record["made"])

    def select_heads(self, model: Model, threshold: float) -> dict[int, Floats]:
        """Return masks of heads (heads,) by layer: 1 for scores above the threshold; layers without one are absent.

        ConfigError: the map is of another model, or no head scores above the threshold.
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
        masks = {layer: np.array([s > threshold for s in row], np.float32) for layer, row in self.scores.items()}
        return {layer: row for layer, row in masks.items() if row.any()}


def model_key(model: Model) -> str:
    """Return ``architecture-layers-heads-hash``, with a hash of the last norm, which quantisation does not change."""
    norm = np.ascontiguousarray(on_host(model.weights.output_norm), np.float32)
    digest = hashlib.sha256(norm.tobytes()).hexdigest()[:12]
    c = model.config
    return f"{c.architecture}-{c.layers}-{c.heads}-{digest}"


@register_scorer("retrieval_heads")
@dataclass(frozen=True)
class RetrievalHeadsScorer(AttentionScorer):
    """`tail` over the heads of a map whose retrieval score is above a threshold; all others are ignored.

    Parameters
    ----------
    map : str
        File that ``sp heads`` wrote for this drafter; if empty, the map of the embedded drafter.
    threshold : float
        Heads with this score or less are ignored.

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
        """Run the drafter once over the prompt and reduce the attention of the retrieval heads."""
        head_map = HeadMap.load(Path(self.map) if self.map else EMBEDDED_MAP)
        masks = head_map.select_heads(request.model, self.threshold)
        if not set(masks) & set(self.scored_layers(request.model.config)):
            raise ConfigError(f"no retrieval head is in a layer that counts; they are in {sorted(masks)}")
        fold = Fold(self.reduction, request.by_head)

        def fold_layer(layer: int, q: Floats, keys: PagedKV) -> None:
            if layer in masks:
                weights = attention_rows(q, keys)
                weights *= array_module(weights).asarray(masks[layer])[:, None, None]
                fold.add(weights)

        return fold.importance(self.visit_layers(request, fold_layer))


LAST_QUERIES = 32  # tokens at the end of a prompt that are queries where no question is known
DEPTH = 0.6  # share of the layers before the second of the two layers of `rule_of_thumb`


@register_scorer("calibrated")
@dataclass(frozen=True)
class CalibratedScorer(ReadingScorer):
    """Attention from the question's tokens in the layers and heads that retrieve; later layers are not run.

    A calibration of the drafter's file names the layers and heads, and says whether queries and keys have rotary
    embedding, see `Retrieval`; without a calibration it is `rule_of_thumb`. The importance of a token is its largest
    weight over queries and heads. Tokens after the question score zero. Where a prompt names no question, its last 32
    tokens are the queries.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    calibrate : {"auto", "never"}
        Make the calibration of a file that has none when it is first used, or never.

    Notes
    -----
    Un-rotated scores of one middle layer find facts that the maximum over all heads misses: see
    ``docs/results/real.md``. Retrieval heads: Wu et al. (arXiv 2404.15574).
    """

    retrieves: ClassVar[bool] = True
    keeps: ClassVar[bool] = True

    calibrate: Literal["auto", "never"] = "auto"

    def tail_scorer(self, retrieval: Retrieval) -> TailScorer:
        """Return the `tail` scorer with the layers, the rotary embedding and the reduction of a calibration."""
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
        """Return the number of layers up to the last one that counts."""
        return retrieval_of(config).depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter's first layers once over the prompt and reduce the attention of the retrieval heads."""
        model, shortened = request.model, up_to_question(request)
        retrieval = retrieval_of(model.config)
        tail = self.tail_scorer(retrieval)
        fold = Fold(tail.reduction, request.by_head)
        whole = all(len(heads) == model.config.heads for _, heads in retrieval.heads)
        masks = {layer: _mask(heads, model.config.heads) for layer, heads in retrieval.heads}

        def fold_layer(layer: int, q: Floats, keys: PagedKV) -> None:
            if whole:  # the fused kernel reduces all heads, without their weights in memory
                fold.add_layer(q, keys, causal=True)
                return
            weights = attention_rows(q, keys)
            weights *= array_module(weights).asarray(masks[layer])[:, None, None]
            fold.add(weights)

        replay_key = (fold.reduction, fold.by_head) if whole and fold.reduction.in_kernel else None
        return padded(fold.importance(tail.visit_layers(shortened, fold_layer, replay_key)), len(request.ids))


def retrieval_of(config: ModelConfig) -> Retrieval:
    """Return the calibration of a model, or else `rule_of_thumb`."""
    return config.retrieval or rule_of_thumb(config)


def rule_of_thumb(config: ModelConfig) -> Retrieval:
    """Return all heads, un-rotated, of the two layers with global attention around 60 % of the depth.

    These are the first such layer from there on and the one before it: in a hybrid of 24 layers of which every fourth
    has attention, layers 11 and 15.
    """
    layers = config.global_layers
    if not layers:
        raise ConfigError("scorer calibrated needs attention layers, and the drafter has none; choose another scorer")
    deep = [place for place, layer in enumerate(layers) if layer >= round(DEPTH * config.layers)]
    last = max(deep[0] if deep else len(layers) - 1, min(1, len(layers) - 1))
    heads = tuple(range(config.heads))
    return Retrieval(tuple((layer, heads) for layer in layers[max(last - 1, 0) : last + 1]), "none", measured=False)


def up_to_question(request: ScoreRequest) -> ScoreRequest:
    """Return the request up to the last token of its question; without one, its last 32 tokens are the question."""
    n = len(request.ids)
    end = n if request.content_end is None else min(request.content_end, n)
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
    """Return a mask (count,) that is 1 for the heads."""
    mask = np.zeros(count, np.float32)
    mask[list(heads)] = 1
    return mask
