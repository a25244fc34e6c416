"""Train the draft of the target: ``python fit_draft.py CONFIG.yaml DATA ASSETS OUT [--heads MAP.json] [--init FILE]``.

`needle_pair.draft_train` on the samples of `compose`. No head of the draft is shown what to copy; where a map of the
target's heads is given (``sp heads ASSETS/target.gguf -o MAP.json``), the draft starts from the match that the two
best heads of one layer were found to make, and is fed by what that layer reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from draft import Draft, DraftConfig, start_from_heads
from draft_step import BlockUse
from draft_train import arguments, config_of, train
from feed import Stage, feed
from shapes import build
from target import Target
from tokenizer import Encoder

from sp.scoring.attention.head_map import HeadMap


@dataclass
class DraftStage(BlockUse, Stage):
    """One stage of a recipe; the rate falls linearly to a share of itself."""

    lm_rows: int = 0
    final_lr: float = 1.0
    pointer: float = 0.0


def best_heads(found: HeadMap, most: int = 2) -> tuple[int, tuple[int, ...]]:
    """The layer whose best heads retrieve best together, and these heads; not layer 0, which reads only tokens.

    Examples
    --------
    >>> best_heads(HeadMap("", {0: (1.0, 1.0), 3: (0.1, 0.8, 0.7), 5: (0.9, 0.0, 0.2)}))
    (3, (1, 2))
    """
    ranked = {layer: sorted(range(len(row)), key=lambda head: -row[head])[:most] for layer, row in found.scores.items()}
    layer = max((one for one in ranked if one), key=lambda one: sum(found.scores[one][head] for head in ranked[one]))
    return layer, tuple(ranked[layer])


def fed_by(shape: DraftConfig, layer: int) -> DraftConfig:
    """The shape with the output of the layer before `layer` among its features, in place of the nearest.

    Examples
    --------
    >>> fed_by(DraftConfig(target_layers=(2, 6, 10)), 9).target_layers
    (2, 6, 8)
    """
    ranked = sorted(shape.target_layers, key=lambda one: -abs(one - (layer - 1)))
    return replace(shape, target_layers=tuple(sorted({*ranked[:-1], layer - 1})))


def main() -> None:
    """Read the command line and train."""
    a = arguments()
    a.add_argument("--heads", type=Path, help="map of the target's heads to start from")
    args = a.parse_args()
    cfg = yaml.safe_load(args.config.read_text())
    mix = cfg.get("mix", {})
    stages = [DraftStage(**{**s, "mix": {**mix, **s.get("mix", {})}}) for s in cfg["stages"]][args.first_stage :]
    batches = feed("target", args.data, stages, args.workers, cfg["seed"])  # before CUDA
    shape = replace(config_of(cfg), mask_id=Encoder(args.data / "vocabulary.json").end_of_text)
    start = None
    if args.heads:
        layer, heads = best_heads(HeadMap.load(args.heads))
        shape = fed_by(shape, layer)

        def start(draft: Draft, target: Target) -> None:
            start_from_heads(draft, target, layer, heads)

    train(args, cfg, stages, batches, build, shape, start)


if __name__ == "__main__":
    main()
