"""Calibrating a drafter: its heads are measured, the best of them chosen, and what was found is used."""

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
SHARE = 0.05  # a needle is kept whose chunk is among so many of all
CLEARLY = 2.0  # standard errors by which another way of choosing has to be better, or a second layer may not be worse
NEAR = 2  # layers behind the first one among which a second one is looked for
LEAST_KEPT = 0.2  # share of needles kept, left out, below which heads are taken to find nothing

Unit = Literal["layers", "heads"]
Rotary = Literal["none", "post"]
Heads = Mapping[int, tuple[int, ...]]  # by place of an attention layer, its heads


@dataclass(frozen=True)
class Judged:
    """How well something chosen finds needles."""

    ranks: Doubles  # share of the other chunks that rank above the needle's
    log_ranks: Doubles  # logarithm of one and the number of those chunks

    @property
    def kept(self) -> Doubles:
        """One for each needle among the first 5 % of the chunks."""
        return (self.ranks <= SHARE).astype(np.float64)


@dataclass(frozen=True)
class Choice:
    """What was chosen, and how it does on what it was not chosen by."""

    rotary: Rotary
    unit: Unit
    heads: Heads  # by place among the attention layers
    left_out: Judged

    @property
    def finds(self) -> bool:
        """Whether needles left out were found at all."""
        return float(self.left_out.kept.mean()) >= LEAST_KEPT


def choose(samples: Sequence[Sample]) -> Choice:
    """The best way of choosing, judged on phrasings and texts that were left out, and what it chooses by all samples.

    Four ways of choosing compete: whole layers or single heads, un-rotated or rotated. Each chooses by one half of the
    samples and is judged by the other, both ways round. The first in that order wins unless another keeps more needles
    by over two standard errors: un-rotated weights do not fade with distance, which short texts cannot show, and whole
    layers are simpler. What wins then chooses by all samples. Of layers that is the earliest which is no worse than the
    best one, and the best of the two behind it that is not clearly worse, since one layer by itself hangs on few heads.
    """
    halves = [[sample for sample in samples if sample.half == half] for half in (0, 1)]
    ways: list[Choice] = []
    for unit in ("layers", "heads"):
        for rotary in ("none", "post"):
            parts = [judge(halves[1 - half], rotary, choose_by(halves[half], rotary, unit)) for half in (1, 0)]
            left_out = Judged(*(np.concatenate(pair) for pair in zip(*map(_pair, parts), strict=True)))
            ways.append(Choice(rotary, unit, {}, left_out))
    most = max(ways, key=lambda way: float(way.left_out.kept.mean()))
    way = next(way for way in ways if not worse(way.left_out.kept, most.left_out.kept, CLEARLY))
    return Choice(way.rotary, way.unit, choose_by(samples, way.rotary, way.unit), way.left_out)


def _pair(judged: Judged) -> tuple[Doubles, Doubles]:
    return judged.ranks, judged.log_ranks


def choose_by(samples: Sequence[Sample], rotary: Rotary, unit: Unit) -> dict[int, tuple[int, ...]]:
    """Up to two layers, see `choose`; or heads that are no worse than the best, the earliest first, `MOST_HEADS`."""
    place = ROTATIONS.index(rotary)
    if unit == "layers":
        return {layer: tuple(range(samples[0].weights.shape[2])) for layer in two_layers(samples, place)}
    scores = _log_ranks(samples, [sample.weights[place] for sample in samples])
    found: dict[int, tuple[int, ...]] = {}
    for layer, head in as_good(scores, MOST_HEADS):
        found[layer] = (*found.get(layer, ()), head)
    return found


def two_layers(samples: Sequence[Sample], place: int) -> tuple[int, ...]:
    """The layers that are chosen by samples, or the one, ascending; of one rotation."""
    scores = _log_ranks(samples, [sample.weights[place].max(axis=1) for sample in samples])
    best = scores[:, scores.mean(axis=0).argmin()]
    ((anchor,),) = as_good(scores, 1)
    near = range(anchor + 1, min(anchor + 1 + NEAR, scores.shape[1]))
    seconds = [layer for layer in near if not worse(-scores[:, layer], -best, CLEARLY)]
    return (anchor, *sorted(seconds, key=lambda layer: float(scores[:, layer].mean()))[:1])


def as_good(scores: Doubles, most: int) -> list[tuple[int, ...]]:
    """Indices of candidates (samples, ...) that are not worse than the best, in order, up to so many.

    >>> as_good(np.array([[3.0, 0.0, 1.0, 0.1], [3.0, 1.0, 0.0, 1.1]]), 2)
    [(1,), (2,)]
    """
    shape = scores.shape[1:]
    flat = scores.reshape(len(scores), -1)
    best = flat[:, flat.mean(axis=0).argmin()]
    good = [index for index in range(flat.shape[1]) if not worse(-flat[:, index], -best)]
    return [tuple(map(int, np.unravel_index(index, shape))) for index in good[:most]]


def worse(one: Doubles, other: Doubles, errors: float = 1.0) -> bool:
    """Whether one (samples,) is smaller than the other in the mean, by over so many standard errors of the difference.

    >>> worse(np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0])), worse(np.zeros(9), np.ones(9))
    (False, True)
    """
    less = other - one
    return bool(less.mean() > errors * less.std(ddof=1) / np.sqrt(len(less)) + 1e-12) if len(less) > 1 else False


def judge(samples: Sequence[Sample], rotary: Rotary, heads: Heads) -> Judged:
    """How the needles of samples rank by the largest weight of some heads."""
    place = ROTATIONS.index(rotary)
    pooled = [
        np.stack([sample.weights[place, layer, list(own)].max(axis=0) for layer, own in heads.items()]).max(axis=0)
        for sample in samples
    ]
    counts = np.array([sample.rank(weights.mean(axis=-1)) for sample, weights in zip(samples, pooled, strict=True)])
    chunks = np.array([len(weights) - 2 for weights in pooled])  # without the first and one of the needle's own
    return Judged(counts / chunks, np.log1p(counts))


def _log_ranks(samples: Sequence[Sample], weights: Sequence[Floats]) -> Any:
    """Of weights (..., chunks, tokens) of each sample: float64 (samples, ...)."""
    pairs = zip(samples, weights, strict=True)
    return np.stack([np.log1p(sample.rank(one.mean(axis=-1))) for sample, one in pairs])


TOKENS = 1536  # of a text
TEXTS = {"cpu": 1, "cuda": 3}
"""Of each kind: what two cores read in half a minute with a drafter of 135M, and a GPU in some seconds."""


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
    """Measure which heads of a drafter find needles, and choose those that the scorer `calibrated` takes.

    Where no head finds needles that were left out, as with random weights, it is `rule_of_thumb`, and `made` says so.
    Which scorer `auto` takes is not measured: it stays that of the calibration that ships for the file, if one does.

    `model`, `tokenizer`, `template`: what was loaded from it, with all layers; `texts`: of each kind; `TEXTS` by
    default; ConfigError: the drafter's window is too short, or this Python lacks the texts.
    """
    texts = TEXTS[model.device] if texts is None else texts
    how = {"texts": texts, "tokens": tokens, "seed": seed}
    shown = list(samples(model, tokenizer, template, **how, progress=progress))
    choice, layers = choose(shown), model.config.attention_layers
    heads = {layers[place]: own for place, own in choice.heads.items()}
    if not choice.finds:
        heads = dict(rule_of_thumb(model.config).heads)
    made = {
        **how,
        "chosen": choice.unit if choice.finds else "by rule, as no head finds needles",
        "phrasings": len(PHRASINGS),
        "kinds": [list(kinds) for kinds in HALVES],
        "device": model.device,
        "sp": __version__,
        "python": platform.python_version(),
    }
    rank, kept = float(np.median(choice.left_out.ranks)), float(choice.left_out.kept.mean())
    rotary = choice.rotary if choice.finds else "none"
    found = Calibration(file_sha256(path), path.name, heads, rotary, rank, kept, len(shown), made)
    known = shipped().get(found.sha256)
    return found if known is None else replace(found, scorer=known.scorer)


def measured(
    path: Path,
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    reporter: Reporter | None = None,
    texts: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Make the calibration of a file that was loaded whole; the reporter is told of it as ``calibrating FILE``."""
    texts = TEXTS[model.device] if texts is None else texts
    with nullcontext() if reporter is None else reporter(f"calibrating {path.name}", questions(texts)) as progress:
        return calibrate(path, model, tokenizer, template, texts=texts, seed=seed, progress=progress)


def makes_one(scorers: Iterable[Scorer]) -> bool:
    """Whether one of the scorers wants a file that has no calibration to get one."""
    return any(scorer.retrieves and getattr(scorer, "calibrate", "auto") == "auto" for scorer in scorers)


def known_retrieval(path: Path, config: ModelConfig, scorers: Iterable[Scorer]) -> Retrieval | None:
    """What the calibration of a file says, if one of the scorers asks for it and there is one."""
    if not any(scorer.retrieves for scorer in scorers) or not path.is_file():
        return None
    found = find_calibration(path)
    return None if found is None else found.retrieval(config)


def made_retrieval(
    path: Path, model: Model, tokenizer: Tokenizer, template: ChatTemplate | None, reporter: Reporter | None
) -> Retrieval | None:
    """What a new calibration says, which is kept; None for a drafter whose window is too short for its texts.
    ConfigError: it cannot be kept.
    """
    if model.config.context < 2 * TOKENS:
        return None
    made = measured(path, model, tokenizer, template, reporter)
    if keep_calibration(made) is None:
        raise ConfigError(
            f"cannot keep the calibration of {path.name} in {folder()}; name a writable folder in SP_CACHE_DIR, or "
            "take scorer.calibrate=never"
        )
    return made.retrieval(model.config)


def default_depth(path: Path, config: ModelConfig) -> int | None:
    """Layers that the default scorer lets a drafter run, a file or what would be one; None for all and the head."""
    scorer = SCORERS.build("auto")
    try:
        return scorer.reading_depth(replace(config, retrieval=known_retrieval(path, config, [scorer])))
    except ConfigError:  # no layer has attention, or the record names what this version does not have
        return None


def needed_depth(scorers: Iterable[Scorer], config: ModelConfig) -> int | None:
    """Layers that scorers let a drafter run, without its head; None for all and the head, or where none is known.

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
