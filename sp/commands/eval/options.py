"""What all commands of `sp eval` take, declared once: models, cells, and where rows go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from sp.chat import Thinking
from sp.commands.known.strategies import read_shares
from sp.commands.line import Part, opt
from sp.commands.open_pair import open_pair, tell_thinking
from sp.config import Option, Tokens
from sp.named import read_names, read_strategies
from sp.pipeline import RunOptions
from sp.pipeline.options import ModelOptions, PlaceOptions

if TYPE_CHECKING:
    from sp.pipeline import Pipeline
    from sp.scoring import Scorer
    from sp.studies.sweep.pairs import Pair

CONTROLS = ("random", "lexical", "head_tail", "oracle")

Lengths = Annotated[tuple[Tokens, ...], opt("-p", "--lengths", help="Prompt lengths in tokens, comma-separated.")]
Amount = Annotated[int, opt("-n", "--n", least=1, help="Examples a length (and depth).")]
OF_CELLS = "scorer selector keep_ratio sparse compress threshold decode max_new_tokens"
"""Options of a run that are a cell's, or a task's."""


@dataclass(frozen=True)
class Asked:
    """What a command of `sp eval` was asked for, besides its own options.

    Parameters
    ----------
    scorer : str
        Scorers, comma-separated; options as in 'tail[queries=16 sparse=alpha:0.1],lookahead'.
    selector : str
        Selectors, likewise, such as 'sentence[neighbours=0],lines'.
    keep_ratio : str
        Shares of the prompt the target reads, comma-separated.
    controls : bool
        Also run the controls: random, lexical, head_tail, oracle.
    out : Path, optional
        Append one JSON line an example and cell to this file; a page to look at comes beside it.
    wide : bool
        Show all columns of tables side by side, however long lines get.
    as_json : bool
        Print one JSON object instead of tables.
    """

    group: ClassVar[str] = "Cells and results"

    scorer: str = "auto"
    selector: str = "top_chunks"
    keep_ratio: str = "0.1"
    controls: bool = True
    models: ModelOptions = ModelOptions()  # noqa: RUF009  nothing changes it
    place: Annotated[PlaceOptions, Part("cards target_cards vram break_even")] = PlaceOptions()  # noqa: RUF009
    run: Annotated[RunOptions, Part(OF_CELLS)] = RunOptions()  # noqa: RUF009
    thinking: Annotated[Thinking, Part(mode="off")] = Thinking("off")  # noqa: RUF009
    out: Path | None = None
    wide: bool = False
    as_json: Annotated[bool, Option(flags=("--json",))] = False

    @property
    def seed(self) -> int:
        """Of examples too."""
        return self.run.seed

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

        scorers = read_strategies(self.scorer.replace(TASK_SLOT, task), SCORERS, "--scorer")
        selectors = read_strategies(self.selector, SELECTORS, "--selector")
        pairs = [(one, other) for one in scorers for other in selectors]
        extra = [SCORERS.build(name) for name in CONTROLS if self.controls]
        pairs += [(one, selectors[0]) for one in extra if one not in scorers]
        return [
            replace(self.run, keep_ratio=keep, scorer=one, selector=other)
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

        return with_drafter(Pair(**vars(self.models)), self.scorers())

    def facts(self) -> dict[str, Any]:
        """What rows say of the models they are of, by role: file, SHA-256 and what was asked of RoPE and arithmetic."""
        from sp.studies.sweep.provenance import pair_facts

        return pair_facts(self.pair()).models

    def open(self, cells: Iterable[RunOptions]) -> Pipeline:
        """Load both models for the scorers of cells; say where the target cannot be asked of thinking."""
        pipeline = open_pair(self.models, self.place, [cell.scorer for cell in cells])
        tell_thinking(self.thinking, pipeline.target)
        return pipeline
