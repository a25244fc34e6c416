"""The usage block of a reply: what was read and written, and under `sp` what compression did and what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sp.pipeline import RunResult


@dataclass(frozen=True)
class PromptTokens:
    """What became of a prompt's tokens.

    Parameters
    ----------
    cached : int
        Those that were known from earlier turns, and not read again.
    new : int
        The others.
    kept : int
        Those that the target attends to when the answer begins.
    recalled : int
        Of `kept`, those that an earlier turn had dropped.
    """

    cached: int
    new: int
    kept: int
    recalled: int

    @classmethod
    def of_run(cls, result: RunResult) -> PromptTokens:
        """A run by itself knows of no earlier turn."""
        return cls(0, len(result.prompt), result.kept_tokens, 0)


def usage(result: RunResult, queued: float, render: float, reasoning: int = 0) -> dict[str, Any]:
    """OpenAI's usage block; under `sp` what compression did, what each stage cost and what a draft's guesses gave.

    Parameters
    ----------
    result : RunResult
    queued, render : float
        Seconds in the queue, and until the prompt was rendered.
    reasoning : int
        Tokens of thinking.
    """
    prompt, generated = PromptTokens.of_run(result), len(result.answer.tokens)
    length = prompt.cached + prompt.new
    stages = [{"name": "render", "tokens": 0, "ms": 1e3 * render}]
    stages += [{"name": s.name, "tokens": s.tokens, "ms": 1e3 * s.seconds} for s in result.answer.trace.stages]
    return {
        "prompt_tokens": length,
        "completion_tokens": generated,
        "total_tokens": length + generated,
        "prompt_tokens_details": {"cached_tokens": prompt.cached},
        **({"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}),
        "sp": {
            "compressed": result.selection is not None,
            "reason": result.decision.reason,
            "window": result.answer.trace.facts.get("window"),
            **asdict(prompt),
            "kept_tokens": prompt.kept,
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
