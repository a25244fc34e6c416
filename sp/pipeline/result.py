"""What a run found, and how it tells of its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sp.arrays import Floats
from sp.errors import plain
from sp.pipeline.options import RunOptions
from sp.pipeline.plan import Decision
from sp.prompt import TokenisedPrompt, Transfer
from sp.prompt.heat import as_heat
from sp.scoring import Importance
from sp.selection import Selection
from sp.trace import Trace

Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""Opens a progress bar: (what, total) -> context that yields a callback taking increments."""

SHOWN = 60
"""Characters of an answer that a short form shows."""


def silent(what: str, total: int) -> AbstractContextManager[None]:
    """A reporter that shows nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Answer:
    """One pass of the target over a prompt; `densities` and `passes` as in `stages.Begun`.

    `reasoning` is what the model thought before, by the marks of its chat template; it is no part of the `text`.
    """

    text: str
    tokens: tuple[int, ...]
    ttft_s: float
    trace: Trace
    densities: tuple[float, ...] = ()
    passes: tuple[int, ...] = ()
    reasoning: str = ""

    def __repr__(self) -> str:
        return f"Answer({plain(self.text, SHOWN)!r}, {len(self.tokens):,} tokens, the first after {self.ttft_s:.3g} s)"

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that a pass of the target gave, on average; None where no draft guessed."""
        return sum(self.passes) / len(self.passes) if self.passes else None


@dataclass(frozen=True)
class Scored:
    """What the drafter found in a prompt, in its own vocabulary, the stages that took, and the way to the target's."""

    drafted: TokenisedPrompt
    importance: Importance
    trace: Trace
    transfer: Transfer | None = None

    def __repr__(self) -> str:
        return f"Scored({len(self.drafted):,} tokens of the drafter in {self.trace.seconds:.3g} s)"


@dataclass(frozen=True)
class RunResult:
    """Everything one run found; `full` is None when the full prefill was not asked for, or not possible.

    `drafted` (the prompt as the drafter read it), `selection`, `scores` and `importance` are None when compression
    was not active, and `drafted` also where the scorer runs no model. `options` are those of the run as this prompt
    settled them. `peak_bytes` is memory of the host; what the device held is in the trace of the answer.
    """

    prompt: TokenisedPrompt
    decision: Decision
    answer: Answer
    full: Answer | None
    importance: Importance | None
    scores: Floats | None
    selection: Selection | None
    peak_bytes: int
    drafted: TokenisedPrompt | None = None
    options: RunOptions | None = None

    def __repr__(self) -> str:
        full = "" if self.full is None or self.full is self.answer else f" against {self.full.ttft_s:.3g} s in full"
        kept = f"{self.kept_tokens:,} of {len(self.prompt):,} tokens kept"
        said = plain(self.answer.text, SHOWN)
        return f"RunResult({said!r}, {kept}, first token after {self.answer.ttft_s:.3g} s{full})"

    def _repr_html_(self) -> str:
        """What a notebook shows: this in words, and the heat of the prompt's tokens; see `as_heat`."""
        kept = None if self.selection is None else self.selection.kept
        return as_heat(self.prompt, kept, self.scores, (repr(self), self.decision.reason))

    @property
    def kept_tokens(self) -> int:
        """Tokens of the prompt the target read."""
        return len(self.prompt) if self.selection is None else int(self.selection.kept.sum())

    @property
    def needle_recall(self) -> float | None:
        """Share of the needle's tokens that were kept; None without a known needle."""
        needle = self.prompt.mask("needle")
        if not needle.any():
            return None
        return 1.0 if self.selection is None else float(self.selection.kept[needle].mean())
