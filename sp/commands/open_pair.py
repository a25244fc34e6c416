"""How commands open a pair: kernels compiled ahead with a bar, a budget of device memory, and what it may think."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp.commands.terminal import progress_bar
from sp.errors import ConfigError

if TYPE_CHECKING:
    from sp.chat import Thinking
    from sp.pipeline import Pipeline, RunOptions
    from sp.pipeline.load import Loaded
    from sp.pipeline.options import ModelOptions, PlaceOptions
    from sp.scoring import Scorer


def draft_of(target: Path | None, draft: Path | None) -> Path:
    """The draft's file: the embedded one for the embedded target; ConfigError where another target's is not named."""
    from sp.pipeline import embedded

    if draft is None and target is not None:
        raise ConfigError(f"guessing ahead needs a draft of {target.name}; name its file with --draft")
    return draft or embedded("draft")


def tell_thinking(thinking: Thinking, target: Loaded) -> None:
    """Say so, in a line, where the target's chat template does not take what was asked of thinking."""
    if note := thinking.note(target.template):
        print(f"sp: {target.path.name}: {note}", file=sys.stderr)


def tell_drafter(pair: Pipeline) -> None:
    """Say, in a line, which drafter a target has where none was named."""
    if pair.drafter is not None and pair.drafter.chosen:
        print(f"sp: drafter: {pair.drafter.path.stem}, {pair.drafter.chosen}", file=sys.stderr)


def scorers_of(options: RunOptions) -> list[Scorer]:
    """The scorers that runs with these options use, as `Pipeline.open` takes them."""
    return [] if options.compress == "off" else [options.scorer]


def open_pair(
    models: ModelOptions, place: PlaceOptions, scorers: Sequence[Scorer] | None = None, draft: Path | None = None
) -> Pipeline:
    """The pair on its device, its kernels compiled; `draft` is for speculative decoding."""
    from sp.kernels.device import pick_device
    from sp.pipeline import Pipeline

    where = pick_device(place.device)
    if where == "cuda":
        compile_kernels()
    on: dict[str, Any] = {"device": where, "vram": place.vram, "cards": place.cards, "target_cards": place.target_cards}
    pair = Pipeline.open(**vars(models), **on, scorers=scorers, reporter=once).with_break_evens(place.break_even)
    tell_drafter(pair)
    return settled(pair if draft is None else pair.with_draft(draft))


@contextmanager
def once(what: str, total: int) -> Iterator[Any]:
    """A `progress_bar` of what is done once and kept, and a line about it wherever standard error goes."""
    print(f"sp: {what}: which of its layers retrieve; once, it is kept", file=sys.stderr)
    with progress_bar(what.split()[0], total) as progress:
        yield progress


def settled(pair: Pipeline) -> Pipeline:
    """The same pair. On a device, where that takes a good part of a request, what was loaded by now is no more looked
    through for cycles.
    """
    if pair.target.model.device == "cuda":
        gc.collect()
        gc.freeze()
    return pair


def compile_kernels() -> None:
    """Compile what the cache lacks for the present GPU, and say so; silent where nothing is missing."""
    from sp.kernels.device import require_device
    from sp.kernels.jit import device_arches
    from sp.kernels.manifest import kernels
    from sp.kernels.tools.build import build_all, missing
    from sp.kernels.tools.check import plan

    jobs = missing(plan(kernels().values(), device_arches(require_device())))
    if jobs:
        print(f"sp: compiling {len(jobs)} kernels for this GPU, once (later: sp kernels build)", file=sys.stderr)
        with progress_bar("compiling", len(jobs)) as progress:
            build_all(jobs, progress)
