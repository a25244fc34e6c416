"""From a drafter to its calibration: read, choose, and say how."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sp import __version__
from sp.gguf import ChatTemplate, Tokenizer
from sp.models import Model
from sp.scoring.attention.calibrated import rule_of_thumb
from sp.scoring.calibration.choose import choose
from sp.scoring.calibration.known import file_sha256, shipped
from sp.scoring.calibration.phrasings import PHRASINGS
from sp.scoring.calibration.reading import HALVES, samples
from sp.scoring.calibration.record import Calibration

TOKENS = 1536
"""Of a text."""
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
