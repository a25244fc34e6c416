"""How commands open a pair: kernels compiled ahead with a bar, a budget of device memory, and what it may think."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp.commands.terminal import progress_bar
from sp.errors import ConfigError

if TYPE_CHECKING:
    from sp.chat import Thinking
    from sp.models import AskedScaling
    from sp.scoring import Scorer
    from sp.session import Pipeline, RunOptions
    from sp.session.load import Loaded


def draft_of(target: Path | None, draft: Path | None) -> Path:
    """The draft's file: the embedded one for the embedded target; ConfigError where another target's is not named."""
    from sp.session import embedded

    if draft is None and target is not None:
        raise ConfigError(f"guessing ahead needs a draft of {target.name}; name its file with --draft")
    return draft or embedded("draft")


def asked_ropes(target_rope: str | None, drafter_rope: str | None) -> dict[str, AskedScaling]:
    """Scalings of RoPE as `Pipeline.open` takes them, of the options that were given; ConfigError for a wrong one.

    Examples
    --------
    >>> asked_ropes(None, "yarn:4")
    {'drafter_rope': AskedScaling(kind='yarn', factor=4.0)}
    """
    from sp.models import AskedScaling

    given = {"target_rope": target_rope, "drafter_rope": drafter_rope}
    return {
        name: AskedScaling.parse(text, f"--{name.replace('_', '-')}")
        for name, text in given.items()
        if text is not None
    }


def asked_maths(math: str, drafter_math: str) -> dict[str, str]:
    """`--math` and `--drafter-math` as `Pipeline.open` takes them; ConfigError for a wrong one.

    Examples
    --------
    >>> asked_maths("int8", "auto")
    {'math': 'int8', 'drafter_math': 'auto'}
    """
    from sp.models import read_math

    given = {"math": math, "drafter_math": drafter_math}
    return {name: str(read_math(text, f"--{name.replace('_', '-')}")) for name, text in given.items()}


def thinking_of(mode: str, effort: str | None) -> Thinking:
    """`--thinking` and `--reasoning-effort`; ConfigError for what they cannot be."""
    from sp.chat import Thinking
    from sp.config import from_mapping

    return from_mapping(Thinking, {"mode": mode, "effort": effort}, "--thinking")


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
    target: Path | None,
    drafter: Path | None,
    device: str,
    vram: str | None,
    break_even: Path | None,
    draft: Path | None = None,
    asked: Mapping[str, Any] | None = None,
) -> Pipeline:
    """The pair on its device, its kernels compiled; `draft` is for speculative decoding, `asked` what else
    `Pipeline.open` takes.
    """
    from sp.kernels.device import pick_device
    from sp.session import Pipeline
    from sp.session.device_memory import parse_bytes

    where, budget = pick_device(device), None if vram is None else parse_bytes(vram)
    if where == "cuda":
        compile_kernels()
    given = {"reporter": once, **(asked or {})}
    pair = Pipeline.open(target, drafter, device=where, vram=budget, **given).with_break_evens(break_even)
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
