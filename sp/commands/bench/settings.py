"""What `sp bench ttft` and `sp bench turn` ask for alike: options of compressed requests, and limits of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp.commands.bench.bench_drafter import attention_options, parts
from sp.errors import ConfigError


def settings_of(
    keep_ratio: str, scorer: str, selector: str, sparse: tuple[str, str, str], common: Mapping[str, Any]
) -> list[Any]:
    """Options of compressed requests: every keep ratio below 1 with every scorer and way to attend.

    `sparse` is --alpha, --density and --blocks.
    """
    from sp.config import from_mapping
    from sp.scoring import SCORERS
    from sp.selection import SELECTORS
    from sp.session import RunOptions

    try:
        ratios = [float(text) for text in parts(keep_ratio)]
    except ValueError:
        raise ConfigError(f"--keep-ratio takes numbers with commas between them, not {keep_ratio!r}") from None
    named = zip(("alpha", "density", "blocks"), sparse, strict=True)
    attending = [attention_options(name, text) for name, given in named for text in parts(given)]
    scorers = []
    for name in parts(scorer):
        chosen = attending if hasattr(SCORERS.build(name), "attention") else []
        scorers += [SCORERS.build(name, options) for options in chosen or [{}]]
    if not ratios or not scorers:
        raise ConfigError("--keep-ratio and --scorer each need at least one item")
    base = {"selector": SELECTORS.build(selector), "compress": "always", **common}
    given = [base | {"keep_ratio": ratio, "scorer": made} for made in scorers for ratio in dict.fromkeys(ratios)]
    made = [from_mapping(RunOptions, options, "sp bench ttft") for options in given]
    compressed = [options for options in made if options.keep_ratio < 1]
    if not compressed:
        raise ConfigError("every --keep-ratio is 1, which is the full prefill; give one below it")
    return compressed


def budgets_of(vram: str) -> list[int | None]:
    """Bytes of --vram; None where there is no limit."""
    from sp.session.device_memory import parse_bytes

    return [None if text == "none" else parse_bytes(text) for text in parts(vram)] or [None]
