"""The usage block of a reply: what was read and written, and under `sp` what compression did and what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sp.conversation import TurnResult
from sp.pipeline import RunResult


@dataclass(frozen=True)
class PromptTokens:
    """What became of a prompt's tokens.

    Parameters
    ----------
    cached : int
        Those that earlier turns have decided, so that they are not read again.
    new : int
        The others.
    kept : int
        Those that the target attends to when the answer begins.
    recalled : int
        Of `kept`, those that an earlier turn had dropped.
    read : int
        What the target read before it answered: in a session less than it attends to.
    drafted : int
        What the drafter read, in its own vocabulary.
    """

    cached: int
    new: int
    kept: int
    recalled: int
    read: int
    drafted: int

    @classmethod
    def of(cls, result: RunResult | TurnResult) -> PromptTokens:
        """Of a turn of a conversation, or of a run by itself, which knows of no earlier turn."""
        if isinstance(result, TurnResult):
            told = result.usage
            return cls(told.cached, told.new, int(result.present.sum()), told.recalled, told.read, told.drafted)
        drafted = 0 if result.drafted is None else len(result.drafted)
        return cls(0, len(result.prompt), result.kept_tokens, 0, result.kept_tokens, drafted)

    @property
    def total(self) -> int:
        """All of the prompt."""
        return self.cached + self.new

    @property
    def compressed(self) -> bool:
        """Whether the target has only a part of it."""
        return self.kept < self.total


def usage(
    result: RunResult | TurnResult, queued: float, render: float, reasoning: int = 0, apart: str | None = None
) -> dict[str, Any]:
    """OpenAI's usage block; under `sp` what compression did, what each stage cost and what a draft's guesses gave.

    Parameters
    ----------
    result : RunResult or TurnResult
    queued, render : float
        Seconds in the queue, and until the prompt was rendered.
    reasoning : int
        Tokens of thinking.
    apart : str, optional
        Why the request had no session.
    """
    prompt, generated = PromptTokens.of(result), len(result.answer.tokens)
    found, recalls = (result.found, result.recalled) if isinstance(result, TurnResult) else (None, ())
    stages = [{"name": "render", "tokens": 0, "ms": 1e3 * render}]
    stages += [{"name": s.name, "tokens": s.tokens, "ms": 1e3 * s.seconds} for s in result.answer.trace.stages]
    return {
        "prompt_tokens": prompt.total,
        "completion_tokens": generated,
        "total_tokens": prompt.total + generated,
        "prompt_tokens_details": {"cached_tokens": prompt.cached},
        **({"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}),
        "sp": {
            "compressed": prompt.compressed,
            "reason": result.decision.reason,
            "window": result.answer.trace.facts.get("window"),
            **asdict(prompt),
            "kept_tokens": prompt.kept,
            "session": found or "none",
            "session_reason": apart,
            "recalls": [{name: value for name, value in asdict(span).items() if name != "text"} for span in recalls],
            "positions": result.answer.trace.facts.get("positions", []),
            "break_even_tokens": result.decision.break_even_tokens,
            "break_even_source": result.decision.break_even_source,
            "acceptance_length": result.answer.acceptance_length,
            "tokens_by_pass": list(result.answer.passes),
            "queue_ms": 1e3 * queued,
            "ttft_ms": 1e3 * (render + result.answer.ttft_s),
            "stages": stages,
        },
    }
