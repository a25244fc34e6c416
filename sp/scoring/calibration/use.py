"""The calibration of a drafter's file: looked up where a scorer asks for it, or else made, and told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from sp.errors import ConfigError
from sp.gguf import ChatTemplate, Tokenizer
from sp.models import Model, ModelConfig, Retrieval
from sp.scoring.base import SCORERS, Scorer
from sp.scoring.calibration.known import find_calibration, folder, keep_calibration
from sp.scoring.calibration.measure import TEXTS, TOKENS, calibrate
from sp.scoring.calibration.reading import questions
from sp.scoring.calibration.record import Calibration

Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""As `sp.session.result.Reporter`."""


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
