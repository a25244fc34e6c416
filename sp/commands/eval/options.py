"""The options that all commands of `sp eval` share, declared once: models, cells, and where rows go."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sp.commands.known.strategies import read_shares
from sp.commands.open_pair import asked_maths, asked_ropes, once, tell_drafter, tell_thinking, thinking_of
from sp.commands.options import (
    Cache,
    Drafter,
    DrafterMath,
    DrafterRope,
    OnDevice,
    Positions,
    ReasoningEffort,
    Rotate,
    Target,
    TargetMath,
    TargetRope,
    ThinkingMode,
)
from sp.commands.tables import Wide
from sp.commands.terminal import AsJson
from sp.config import from_mapping
from sp.named import read_names, read_strategies

if TYPE_CHECKING:
    from sp.chat import Thinking
    from sp.scoring import Scorer
    from sp.session import Pipeline, RunOptions
    from sp.studies.sweep.pairs import Pair

CONTROLS = ("random", "lexical", "head_tail", "oracle")

Lengths = Annotated[str, typer.Option("-p", "--lengths", help="Prompt lengths in tokens, comma-separated.")]
Amount = Annotated[int, typer.Option("-n", "--n", min=1, help="Examples a length (and depth).")]


@dataclass(frozen=True)
class Asked:
    """What a command was asked for, besides its own options; fields stand in the order of the help."""

    scorer: Annotated[
        str,
        typer.Option("--scorer", help="Scorers, comma-separated; options as in 'tail\\[queries=16 pool=5],lookahead'."),
    ] = "auto"
    selector: Annotated[
        str, typer.Option("--selector", help="Selectors, likewise, such as 'sentence\\[neighbours=0],lines'.")
    ] = "top_chunks"
    keep_ratio: Annotated[str, typer.Option("--keep-ratio", help="Shares of the prompt the target reads.")] = "0.1"
    controls: Annotated[bool, typer.Option(help=f"Also run the controls: {', '.join(CONTROLS)}.")] = True
    target: Target = None
    drafter: Drafter = None
    target_rope: TargetRope = None
    drafter_rope: DrafterRope = None
    math: TargetMath = "bf16"
    drafter_math: DrafterMath = "bf16"
    device: OnDevice = "auto"
    positions: Positions = "original"
    kv: Cache = "f16"
    rotate: Rotate = None
    thinking: ThinkingMode = "off"
    reasoning_effort: ReasoningEffort = None
    seed: Annotated[int, typer.Option(help="Of the examples and of scorers that draw random numbers.")] = 0
    out: Annotated[
        Path | None,
        typer.Option(help="Append one JSON line an example and cell to this file; a page to look at comes beside it."),
    ] = None
    wide: Wide = False
    as_json: AsJson = False

    def cells(self, task: str = "") -> list[RunOptions]:
        """Every scorer with every selector and keep ratio; controls with the first selector.

        Parameters
        ----------
        task : str
            Stands in place of ``{task}`` in options of the scorers, where weights are another task's every time.
        """
        from sp.evals.base import TASK_SLOT
        from sp.scoring import SCORERS
        from sp.selection import SELECTORS
        from sp.session import RunOptions

        common = {"positions": self.positions, "kv": self.kv, "rotate": self.rotate, "seed": self.seed}
        scorers = read_strategies(self.scorer.replace(TASK_SLOT, task), SCORERS, "--scorer")
        selectors = read_strategies(self.selector, SELECTORS, "--selector")
        pairs = [(one, other) for one in scorers for other in selectors]
        extra = [SCORERS.build(name) for name in CONTROLS if self.controls]
        pairs += [(one, selectors[0]) for one in extra if one not in scorers]
        return [
            from_mapping(RunOptions, {"keep_ratio": keep, "scorer": one, "selector": other, **common}, "sp eval")
            for keep in read_shares(self.keep_ratio, "--keep-ratio")
            for one, other in pairs
        ]

    def scorers(self) -> list[type[Scorer]]:
        """Classes of the scorers of all cells; their options may name files of another task every time."""
        from sp.scoring import SCORERS

        names = [name for name, _ in read_names(self.scorer, "--scorer")]
        return [SCORERS.class_of(name) for name in (*names, *(CONTROLS if self.controls else ()))]

    def pair(self) -> Pair:
        """Both models as a sweep names them."""
        from sp.studies.sweep.pairs import Pair, with_drafter

        ropes, maths = asked_ropes(self.target_rope, self.drafter_rope), asked_maths(self.math, self.drafter_math)
        pair = Pair(
            self.target,
            self.drafter,
            target_rope=ropes.get("target_rope"),
            drafter_rope=ropes.get("drafter_rope"),
            math=maths["math"],
            drafter_math=maths["drafter_math"],
        )
        return with_drafter(pair, self.scorers())

    def models(self) -> dict[str, Any]:
        """What rows say of the models they are of, by role: file, SHA-256 and what was asked of RoPE and arithmetic."""
        from sp.studies.sweep.provenance import pair_facts

        return pair_facts(self.pair()).models

    def asked_thinking(self) -> Thinking:
        """What the target is asked of thinking."""
        return thinking_of(self.thinking, self.reasoning_effort)

    def open(self, cells: Iterable[RunOptions]) -> Pipeline:
        """Load both models for the scorers of cells; say where the target cannot be asked of thinking."""
        from sp.session import Pipeline

        asked, ropes = self.asked_thinking(), asked_ropes(self.target_rope, self.drafter_rope)
        maths = asked_maths(self.math, self.drafter_math)
        given: dict[str, Any] = {"scorers": [cell.scorer for cell in cells], "reporter": once, **ropes, **maths}
        pipeline = Pipeline.open(self.target, self.drafter, device=self.device, **given)  # type: ignore[arg-type]
        tell_drafter(pipeline)
        tell_thinking(asked, pipeline.target)
        return pipeline


def asking(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of `Asked` as options, after its own; it gets them as its parameter `asked`.

    Parameters
    ----------
    **defaults
        Fields with another default.
    """
    hints = get_type_hints(Asked, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, field.default),
            annotation=hints[field.name],
        )
        for field in fields(Asked)
    ]

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != "asked"]

        @wraps(command)
        def call(**given: Any) -> None:
            asked = Asked(**{each.name: given.pop(each.name) for each in shared})
            command(asked=asked, **given)

        call.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        return call

    return wrap
