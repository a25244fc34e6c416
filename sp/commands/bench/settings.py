"""What `sp bench ttft` and `sp bench turn` ask for alike: options of compressed requests, and limits of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from sp.commands.line import opt
from sp.errors import ConfigError
from sp.pipeline import RunOptions
from sp.pipeline.sizes import Size
from sp.scoring.reading import Sparse

SparseWays = Annotated[
    tuple[Sparse, ...],
    opt(
        help="Which key blocks the drafter reads, comma-separated: off, alpha:0.1, blocks:64, sqrt:64, energy:0.9, or "
        "for random weights, which no threshold suits, density:0.05."
    ),
]
Budgets = Annotated[
    tuple[Literal["none"] | Size, ...],
    opt("--vram", help="Limits of device memory, comma-separated, e.g. none,23g; a full prefill has the first."),
]


def settings_of(
    ratios: Sequence[float], scorer: str, selector: str, sparse: Sequence[Sparse], common: RunOptions
) -> list[RunOptions]:
    """Options of compressed requests: every keep ratio below 1 with every scorer and way to attend."""
    from dataclasses import replace

    from sp.named import read_strategies
    from sp.scoring import SCORERS
    from sp.selection import SELECTORS

    scorers = []
    for one in read_strategies(scorer, SCORERS, "--scorer"):
        ways = sparse if hasattr(one, "sparse") else ()
        scorers += [replace(one, sparse=how) for how in ways] or [one]  # type: ignore[type-var]
    (chosen,) = read_strategies(selector, SELECTORS, "--selector")
    compressed = [
        replace(common, selector=chosen, compress="always", keep_ratio=ratio, scorer=one)
        for one in scorers
        for ratio in dict.fromkeys(ratios)
        if ratio != 1
    ]
    if not compressed:
        raise ConfigError("every --keep-ratio is 1, which is the full prefill; give one below it")
    return compressed


def budgets_of(vram: Sequence[str | int]) -> list[int | None]:
    """Bytes of --vram; None where there is no limit."""
    return [None if isinstance(one, str) else one for one in vram] or [None]
