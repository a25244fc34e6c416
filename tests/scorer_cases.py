"""What the shared tests of scorers need to know of each: configurations, and where the needle must come first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from retriever_files import token_task
from strategies import names_under_test

from sp.models import Model, ModelConfig
from sp.scoring import SCORERS, ModelFreeScorer, ScoreRequest
from sp.scoring.attention.heads import HeadMap, model_key
from sp.scoring.trained.attention_features import OVER_HEADS
from sp.scoring.trained.base import ScorerFile, TrainedScorer
from sp.scoring.trained.cross_attention import start_params
from sp.scoring.trained.late_interaction import ScoringHead

KEY, VALUE = 5, 4
NEEDLE = KEY + VALUE  # tokens


@dataclass(frozen=True)
class Case:
    """How a scorer is tested.

    Parameters
    ----------
    options : tuple of dict
        Configurations besides the default.
    reads : bool
        Whether it runs a model over the whole prompt.
    finds : dict or None
        Options with which it puts the needle of a constructed prompt before all else; None if it does not promise that.
    bad : tuple of (dict, str)
        Options it must refuse, and what the message says.
    default : dict
        What stands for the default: less of what takes long.
    """

    options: tuple[dict[str, Any], ...] = ()
    reads: bool = True
    finds: dict[str, Any] | None = None
    bad: tuple[tuple[dict[str, Any], str], ...] = ()
    default: dict[str, Any] = field(default_factory=dict)


BAD_READING = (
    ({"attention": "sparse"}, "flashprefill"),
    ({"attention": "dense", "density": 0.2}, "reads all blocks"),
    ({"sparse": "alpha:1.5"}, "alpha"),
    ({"sprase": "off"}, "did you mean 'sparse'"),
)
BAD_ATTENTION = (
    *BAD_READING,
    ({"queries": 0}, "queries must be"),
    ({"pool": 2}, "pool must be"),
    ({"order": "pool,heads"}, "permutation"),
    ({"rotary": "pre"}, "rotary"),
    ({"depth": 0}, "depth must be"),
    ({"layers": "first"}, "layers must be"),
)
SPARSE = {"sparse": "alpha:0.05"}
SEED = {"rotary": "none", "order": "heads,queries,pool"}
SPECPC = {"order": "heads,queries,pool", "over_queries": "max", "pooling": "max", "pool": 64}

CASES: dict[str, Case] = {
    "tail": Case(
        ({"queries": "question"}, SPARSE, SEED, SPECPC, {"layers": "every_second", "order": "queries,heads,pool"}),
        finds={"queries": 3},
        bad=BAD_ATTENTION,
    ),
    "lookahead": Case(
        ({"queries": 3, "last": False}, {"queries": 1}),
        finds={"queries": 3},
        bad=(*BAD_ATTENTION[:-2], ({"depth": 1}, "all layers"), ({"queries": "question"}, "queries must be int")),
    ),
    "layer_subset": Case(({"layers": [0, -1]},), finds={"queries": 3}, bad=BAD_ATTENTION),
    "mid_layer": Case(({"queries": 4, "rotary": "post"},), finds={}, bad=BAD_ATTENTION),
    "calibrated": Case(
        (SPARSE, {"calibrate": "never"}),
        finds={},
        bad=(*BAD_READING, ({"calibrate": "yes"}, "calibrate is"), ({"queries": 8}, "unknown option")),
    ),
    "auto": Case(
        (SPARSE, {"calibrate": "never"}),
        finds={},  # of a file that nothing is known of: as `calibrated`
        bad=(*BAD_READING, ({"calibrate": "yes"}, "calibrate is"), ({"queries": 8}, "unknown option")),
    ),
    "late_interaction": Case(
        (SPARSE,), bad=(*BAD_READING, ({"weights": 3}, "weights must"), ({"queries": 8}, "unknown option"))
    ),
    "snapkv": Case(
        ({"queries": 8, "over_heads": "mean", "pooling": "max", "pool": 5},), finds={"queries": 3}, bad=BAD_ATTENTION
    ),
    "gemfilter": Case(({"layers": [0]},), finds={}, bad=(*BAD_ATTENTION, ({"queries": 4}, "queries must be 1"))),
    "head_vote": Case(
        ({"vote": "reciprocal", "chunk_size": 16}, {"top": 0.5}),
        finds={"queries": 3, "top": 0.01},
        bad=(*BAD_ATTENTION, ({"chunk_size": 0}, "chunk_size"), ({"top": 0.0}, "top must"), ({"vote": "x"}, "vote")),
    ),
    "entropy_weight": Case(({"beta": 0.5},), finds={"queries": 3}, bad=(*BAD_ATTENTION, ({"beta": -1.0}, "beta"))),
    "sink_masked": Case(
        ({"sink": 0, "recent": 40, "renormalise": False},),
        finds={"queries": 3},
        bad=(*BAD_ATTENTION, ({"sink": -1}, "sink must"), ({"recent": -1}, "recent must")),
    ),
    "retrieval_heads": Case(
        ({"threshold": 0.0, "over_heads": "max"},),
        finds={"queries": 3},
        bad=(*BAD_ATTENTION, ({"threshold": 1.0}, "threshold must")),
    ),
    "probe": Case(
        ({"weights": "rotary=none chunk_size=20"},),
        finds={"weights": ""},
        bad=(*BAD_READING, ({"weights": 3}, "weights must"), ({"queries": 8}, "unknown option")),
    ),
    "lines": Case(bad=(*BAD_READING, ({"weights": 3}, "weights must"))),
    "cross_attention": Case(({"weights": "depth=1"},), bad=(*BAD_READING, ({"weights": 3}, "weights must"))),
    "self_information": Case((SPARSE,), bad=BAD_READING),
    "embedding": Case(
        ({"centred": False, "chunk_size": 20, "depth": 1},),
        bad=(*BAD_READING, ({"chunk_size": 0}, "chunk_size"), ({"depth": 0}, "depth must")),
    ),
    "anchored": Case(
        ({"asked": 0, "radius": "by_length"},),
        finds={"asked": KEY, "radius": 0},
        bad=(*BAD_ATTENTION, ({"ngram": 0}, "ngram must"), ({"asked": -1}, "asked must")),
    ),
    "target_attention": Case(finds={"queries": 3}, bad=BAD_ATTENTION),
    "answer_attention": Case(
        ({"queries": 3, "last": True, "over_layers": "max"}, {"queries": 2, "over_heads": "max"}),
        finds={"queries": VALUE},
        bad=(*BAD_ATTENTION[:-2], ({"depth": 1}, "all layers"), ({"over_layers": "sum"}, "over_layers is")),
        default={"queries": 8},
    ),
    "leave_one_out": Case(
        ({"among": 3, "chunk_size": 40, "answer_tokens": 2},),
        finds={"answer_tokens": VALUE, "among": 3},
        bad=(
            ({"chunk_size": 0}, "chunk_size must"),
            ({"among": -1}, "among must"),
            ({"answer_tokens": 0}, "answer_tokens must"),
            ({"amnog": 1}, "did you mean 'among'"),
        ),
        default={"answer_tokens": 3},
    ),
    "bm25": Case(
        ({"chunk_size": 7, "k1": 0.0},),
        reads=False,
        bad=(
            ({"chunk_size": 0}, "chunk_size must"),
            ({"k1": -1.0}, "k1 must"),
            ({"b": 1.1}, "b must"),
            ({"k2": 1}, "did you mean"),
        ),
    ),
    "lexical": Case(
        ({"asked": 96, "radius": "by_length"}, {"ngram": 1, "chunk_size": 5}),
        reads=False,
        finds={"radius": 0},
        bad=(
            ({"ngram": 0}, "ngram must"),
            ({"most_hits": 0}, "most_hits must"),
            ({"asked": -1}, "asked must"),
            ({"chunk_size": 0}, "chunk_size must"),
            ({"radius": -1}, "radius must"),
            ({"radius": "by_lenght"}, "radius must"),
        ),
    ),
    "random": Case(({"run": 5},), reads=False, bad=(({"run": 0}, "run must"),)),
    "uniform": Case(({"run": 1},), reads=False, bad=(({"run": 0}, "run must"),)),
    "recency": Case(reads=False, bad=(({"run": 1}, "unknown option"),)),
    "head_tail": Case(reads=False, bad=(({"run": 1}, "unknown option"),)),
    "oracle": Case(reads=False, finds={}, bad=(({"run": 1}, "unknown option"),)),
}

DOCUMENTED = tuple(CASES)
"""Scorers that have a row in docs/scorers.md; others, such as those of plugins, are tested as they are by default."""

for _name in names_under_test(SCORERS):
    CASES.setdefault(_name, Case(reads=not issubclass(SCORERS.class_of(_name), ModelFreeScorer)))

MATRIX = [(name, options) for name, case in CASES.items() for options in (case.default, *case.options)]


@dataclass(frozen=True)
class Asked:
    """A prompt for a constructed retriever, whose needle begins at `start`."""

    request: ScoreRequest
    start: int
    told: list[int] = field(default_factory=list)


def ask(model: Model, tokens: int, needles: int = 12, seed: int = 9) -> Asked:
    """A request that names its question and its needle, and counts progress in `told`."""
    task = token_task(tokens, needles, seed, key=KEY, value=VALUE)
    asked, needle = np.zeros(tokens, bool), np.zeros(tokens, bool)
    asked[tokens - KEY :] = True
    needle[task.start : task.start + NEEDLE] = True
    told: list[int] = []
    request = ScoreRequest(model, task.ids, np.arange(tokens), asked, needle, seed=3, progress=told.append)
    return Asked(request, task.start, told)


def with_map(name: str, options: dict[str, Any], model: Model, folder: Path) -> dict[str, Any]:
    """Options, for `retrieval_heads` with a map of the model: every head of the last attention layer retrieves.

    Trained scorers get a file likewise; what stands in `weights` are its options of learning.
    """
    if name == "late_interaction":
        path = folder / "head.safetensors"
        random_head(model.config).save(path, {})
        return options | {"weights": str(path)}
    if issubclass(SCORERS.class_of(name), TrainedScorer):
        return options | {"weights": str(weights_of_last_layer(name, options.get("weights", ""), model, folder))}
    if name != "retrieval_heads":
        return options
    config, last = model.config, model.config.attention_layers[-1]
    path = folder / "heads.json"
    HeadMap(
        model_key(model), {layer: (float(layer == last),) * config.heads for layer in config.attention_layers}
    ).save(path)
    return options | {"map": str(path)}


def weights_of_last_layer(name: str, learning: str, model: Model, folder: Path) -> Path:
    """A file that weighs how hard the last layer's heads look at a unit; of a head's projections, a start."""
    scorer = SCORERS.build(name)
    assert isinstance(scorer, TrainedScorer)
    options = scorer.options(
        {key: yaml.safe_load(value) for key, value in (o.split("=") for o in learning.split())}, name
    )
    arrays: dict[str, Any] = {}
    if name == "cross_attention":
        arrays = start_params(model.config.hidden, options.rank, 0)
    else:
        [(count,)] = scorer.shapes(model, options).values()
        weight = np.zeros((2 * options.neighbours + 1, count // (2 * options.neighbours + 1)), np.float32)
        over = OVER_HEADS * (2 if options.rotary == "both" else 1)  # behind those of the heads
        by_layer = weight[options.neighbours, :-over].reshape(len(model.config.attention_layers), -1)
        by_layer[-1] = 1 / by_layer.shape[1]
        arrays["weight"] = weight.ravel()
    path = folder / f"{name}.safetensors"
    ScorerFile(name, model_key(model), arrays, vars(options)).save(path)
    return path


def random_head(
    config: ModelConfig,
    query: tuple[int, ...] | None = None,
    key: tuple[int, ...] | None = None,
    rank: int = 7,
    seed: int = 0,
    drafter: str = "0" * 64,
) -> ScoringHead:
    """A head of some rows much larger than others, for layers by their place among those with attention; all if none
    are given. Its numbers are those of float16, as in a file."""
    rng, layers = np.random.default_rng(seed), config.attention_layers
    places = tuple(range(len(layers)))

    def matrix(rows: int, columns: int) -> np.ndarray:
        drawn = rng.normal(size=(rows, columns)) / rows**0.5
        drawn[rng.integers(0, rows, 3)] *= 20
        return drawn.astype(np.float16).astype(np.float32)

    wide, deep = config.heads * config.head_dim, 2 * config.kv_heads * config.head_dim
    queries, keys = ([layers[place] for place in (places if some is None else some)] for some in (query, key))
    return ScoringHead(
        drafter,
        {layer: matrix(wide, rank) for layer in queries},
        {layer: matrix(deep, rank) for layer in keys},
        {layer: matrix(wide, 1)[:, 0] for layer in queries},
    )


def margin(scores: np.ndarray, start: int) -> float:
    """Best score in the needle over the best elsewhere, 32 tokens round it and the prompt's ends left out."""
    inside = scores[start : start + NEEDLE].max()
    outside = np.concatenate([scores[32 : max(32, start - 32)], scores[start + NEEDLE + 32 : -64]])
    return float(inside - outside.max())


def silently(asked: Asked, **changes: Any) -> ScoreRequest:
    """The same request, with changes."""
    return replace(asked.request, **changes)
