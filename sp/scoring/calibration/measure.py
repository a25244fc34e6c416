"""Calibrate a drafter: measure its heads on needles, choose the best of them, and store the result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sp import __version__
from sp.arrays import Doubles, Floats
from sp.errors import ConfigError
from sp.gguf import ChatTemplate, Tokenizer
from sp.models import Model, ModelConfig, Retrieval
from sp.scoring.attention.heads import rule_of_thumb
from sp.scoring.base import SCORERS, Scorer
from sp.scoring.calibration.reading import HALVES, PHRASINGS, ROTATIONS, Sample, questions, samples
from sp.scoring.calibration.record import Calibration, file_sha256, find_calibration, folder, keep_calibration, shipped
from sp.trace import Reporter

MOST_HEADS = 8
SHARE = 0.05  # share of the chunks, the best ones, among which a needle counts as found
CLEARLY = 2.0  # standard errors by which another method has to be better, or a second layer may not be worse
NEAR = 2  # layers after the first one among which a second one is searched for
LEAST_RECALL = 0.2  # share of held-out needles found below which no head counts as retrieving

Unit = Literal["layers", "heads"]
Rotary = Literal["none", "post"]
Heads = Mapping[int, tuple[int, ...]]  # by place of an attention layer, its heads


@dataclass(frozen=True)
class NeedleRanks:
    """Ranks of the needles' chunks by the attention of some heads, one number per needle."""

    ranks: Doubles  # share of the other chunks that rank above the needle's
    log_ranks: Doubles  # logarithm of one plus the number of those chunks

    @property
    def found_needles(self) -> Doubles:
        """1 for each needle whose chunk is among the first 5 % of all, 0 for others."""
        return (self.ranks <= SHARE).astype(np.float64)


@dataclass(frozen=True)
class HeadChoice:
    """Heads that were chosen, and their ranks on held-out samples."""

    rotary: Rotary
    unit: Unit
    heads: Heads  # by place among the attention layers
    left_out: NeedleRanks

    @property
    def finds(self) -> bool:
        """True if enough held-out needles are found."""
        return float(self.left_out.found_needles.mean()) >= LEAST_RECALL


def choose(samples: Sequence[Sample]) -> HeadChoice:
    """Choose heads by the best of four methods, each evaluated on held-out phrasings and texts.

    The methods choose whole layers or single heads, un-rotated or rotated. Each chooses on one half of the samples and
    is evaluated on the other, both ways round. The first in that order wins unless another finds more needles by over
    two standard errors: un-rotated weights do not decay with distance, which short texts cannot show, and whole layers
    are simpler. The winner then chooses on all samples. Of layers it chooses the earliest that is no worse than the
    best, and the best of the two after it if that is not clearly worse, because a single layer depends on few heads.
    """
    halves = [[sample for sample in samples if sample.half == half] for half in (0, 1)]
    methods: list[HeadChoice] = []
    for unit in ("layers", "heads"):
        for rotary in ("none", "post"):
            parts = [judge(halves[1 - half], rotary, choose_by(halves[half], rotary, unit)) for half in (1, 0)]
            left_out = NeedleRanks(*(np.concatenate(pair) for pair in zip(*map(_pair, parts), strict=True)))
            methods.append(HeadChoice(rotary, unit, {}, left_out))
    best = max((method.left_out.found_needles for method in methods), key=lambda needles: float(needles.mean()))
    chosen = next(method for method in methods if not worse(method.left_out.found_needles, best, CLEARLY))
    heads = choose_by(samples, chosen.rotary, chosen.unit)
    return HeadChoice(chosen.rotary, chosen.unit, heads, chosen.left_out)


def _pair(needles: NeedleRanks) -> tuple[Doubles, Doubles]:
    return needles.ranks, needles.log_ranks


def choose_by(samples: Sequence[Sample], rotary: Rotary, unit: Unit) -> dict[int, tuple[int, ...]]:
    """Return up to two layers, see `choose`, or up to `MOST_HEADS` heads that are no worse than the best."""
    place = ROTATIONS.index(rotary)
    if unit == "layers":
        return {layer: tuple(range(samples[0].weights.shape[2])) for layer in two_layers(samples, place)}
    scores = _log_ranks(samples, [sample.weights[place] for sample in samples])
    heads: dict[int, tuple[int, ...]] = {}
    for layer, head in as_good(scores, MOST_HEADS):
        heads[layer] = (*heads.get(layer, ()), head)
    return heads


def two_layers(samples: Sequence[Sample], place: int) -> tuple[int, ...]:
    """Return the one or two layers that are chosen by samples, ascending; `place` is the rotation's index."""
    scores = _log_ranks(samples, [sample.weights[place].max(axis=1) for sample in samples])
    best = scores[:, scores.mean(axis=0).argmin()]
    ((anchor,),) = as_good(scores, 1)
    near = range(anchor + 1, min(anchor + 1 + NEAR, scores.shape[1]))
    seconds = [layer for layer in near if not worse(-scores[:, layer], -best, CLEARLY)]
    return (anchor, *sorted(seconds, key=lambda layer: float(scores[:, layer].mean()))[:1])


def as_good(scores: Doubles, most: int) -> list[tuple[int, ...]]:
    """Return indices of candidates (samples, ...) that are not worse than the best, in order, `most` at most.

    >>> as_good(np.array([[3.0, 0.0, 1.0, 0.1], [3.0, 1.0, 0.0, 1.1]]), 2)
    [(1,), (2,)]
    """
    shape = scores.shape[1:]
    flat = scores.reshape(len(scores), -1)
    best = flat[:, flat.mean(axis=0).argmin()]
    good = [index for index in range(flat.shape[1]) if not worse(-flat[:, index], -best)]
    return [tuple(map(int, np.unravel_index(index, shape))) for index in good[:most]]


def worse(candidate: Doubles, reference: Doubles, errors: float = 1.0) -> bool:
    """Return True if a candidate (samples,) has a smaller mean than the reference by over `errors` standard errors.

    >>> worse(np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0])), worse(np.zeros(9), np.ones(9))
    (False, True)
    """
    less = reference - candidate
    return bool(less.mean() > errors * less.std(ddof=1) / np.sqrt(len(less)) + 1e-12) if len(less) > 1 else False


def judge(samples: Sequence[Sample], rotary: Rotary, heads: Heads) -> NeedleRanks:
    """Rank the needles of samples by the largest weight of some heads."""
    place = ROTATIONS.index(rotary)
    pooled = [
        np.stack([sample.weights[place, layer, list(own)].max(axis=0) for layer, own in heads.items()]).max(axis=0)
        for sample in samples
    ]
    counts = np.array([sample.rank(weights.mean(axis=-1)) for sample, weights in zip(samples, pooled, strict=True)])
    chunks = np.array([len(weights) - 2 for weights in pooled])  # without the first and one of the needle's own
    return NeedleRanks(counts / chunks, np.log1p(counts))


def _log_ranks(samples: Sequence[Sample], weights: Sequence[Floats]) -> Any:
    """Return the log ranks, float64 (samples, ...), by weights (..., chunks, tokens) of each sample."""
    pairs = zip(samples, weights, strict=True)
    return np.stack([np.log1p(sample.rank(array.mean(axis=-1))) for sample, array in pairs])


TOKENS = 1536  # length of a text
TEXTS = {"cpu": 1, "cuda": 3}
"""Texts of each kind: two cores process them in half a minute with a drafter of 135M, and a GPU in some seconds."""


def calibrate(
    path: Path,
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    *,
    texts: int | None = None,
    tokens: int = TOKENS,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Calibration:
    """Measure the heads of a drafter on needles, and choose those that the scorer `calibrated` uses.

    Where no head finds held-out needles, as with random weights, the heads are those of `rule_of_thumb`, and the field
    `made` says so. The scorer of `auto` is not measured: it is that of the calibration that ships for the file, if any.

    Parameters
    ----------
    path : Path
        The drafter's file.
    model, tokenizer, template
        The drafter as loaded from the file, with all its layers.
    texts : int, optional
        Texts of each kind; `TEXTS` by default.
    tokens : int
        Length of each text.
    progress : callable, optional
        Called with 1 after every question.

    Raises
    ------
    ConfigError
        The drafter's context is too short, or this Python lacks the texts.
    """
    texts = TEXTS[model.device] if texts is None else texts
    settings = {"texts": texts, "tokens": tokens, "seed": seed}
    measured_samples = list(samples(model, tokenizer, template, **settings, progress=progress))
    choice, layers = choose(measured_samples), model.config.attention_layers
    heads = {layers[place]: own for place, own in choice.heads.items()}
    if not choice.finds:
        heads = dict(rule_of_thumb(model.config).heads)
    provenance = {
        **settings,
        "chosen": choice.unit if choice.finds else "by rule, as no head finds needles",
        "phrasings": len(PHRASINGS),
        "kinds": [list(kinds) for kinds in HALVES],
        "device": model.device,
        "sp": __version__,
        "python": platform.python_version(),
    }
    rank, recall = float(np.median(choice.left_out.ranks)), float(choice.left_out.found_needles.mean())
    rotary = choice.rotary if choice.finds else "none"
    calibration = Calibration(
        file_sha256(path), path.name, heads, rotary, rank, recall, len(measured_samples), provenance
    )
    known = shipped().get(calibration.sha256)
    return calibration if known is None else replace(calibration, scorer=known.scorer)


def measured(
    path: Path,
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    reporter: Reporter | None = None,
    texts: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Make the calibration of a file that was loaded with all layers, reported as ``calibrating FILE``."""
    texts = TEXTS[model.device] if texts is None else texts
    with nullcontext() if reporter is None else reporter(f"calibrating {path.name}", questions(texts)) as progress:
        return calibrate(path, model, tokenizer, template, texts=texts, seed=seed, progress=progress)


def makes_one(scorers: Iterable[Scorer]) -> bool:
    """Return True if one of the scorers makes a calibration for a file that has none."""
    return any(scorer.retrieves and getattr(scorer, "calibrate", "auto") == "auto" for scorer in scorers)


def known_retrieval(path: Path, config: ModelConfig, scorers: Iterable[Scorer]) -> Retrieval | None:
    """Return the retrieval heads of a file's calibration, if one of the scorers needs it and there is one."""
    if not any(scorer.retrieves for scorer in scorers) or not path.is_file():
        return None
    calibration = find_calibration(path)
    return None if calibration is None else calibration.retrieval(config)


def made_retrieval(
    path: Path, model: Model, tokenizer: Tokenizer, template: ChatTemplate | None, reporter: Reporter | None
) -> Retrieval | None:
    """Make and store a calibration and return its retrieval heads; None if the drafter's context is too short.

    ConfigError: the calibration cannot be stored.
    """
    if model.config.context < 2 * TOKENS:
        return None
    calibration = measured(path, model, tokenizer, template, reporter)
    if keep_calibration(calibration) is None:
        raise ConfigError(
            f"cannot write the calibration of {path.name} to {folder()}; set SP_CACHE_DIR to a writable folder, or "
            "pass scorer.calibrate=never"
        )
    return calibration.retrieval(model.config)


def default_depth(path: Path, config: ModelConfig) -> int | None:
    """Return the layers of a drafter that the default scorer runs; None for all and the head.

    `path` need not exist: the file may be one that is to be downloaded.
    """
    scorer = SCORERS.build("auto")
    try:
        return scorer.reading_depth(replace(config, retrieval=known_retrieval(path, config, [scorer])))
    except ConfigError:  # no layer has attention, or the record names a scorer that this version does not have
        return None


def needed_depth(scorers: Iterable[Scorer], config: ModelConfig) -> int | None:
    """Return the layers of a drafter that scorers run, without its head; None for all and the head, or if unknown.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> from sp.scoring import SCORERS
    >>> config = find_shape("qwen3-0.6b").config
    >>> needed_depth([SCORERS.build("calibrated"), SCORERS.build("bm25")], config)
    18
    >>> needed_depth([SCORERS.build("calibrated"), SCORERS.build("lookahead")], config), needed_depth([], config)
    (None, None)
    """
    depths = [scorer.reading_depth(config) for scorer in scorers if scorer.drafts]
    known = [depth for depth in depths if depth is not None]
    return max(known) if known and len(known) == len(depths) else None
