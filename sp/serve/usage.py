"""The usage block of an answer: tokens by where they went, and if asked for the text that was kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sp.decode import Sample
from sp.prompt.pieces import KINDS, edges, kinds
from sp.prompt.whole import whole_characters
from sp.serve.messages import Question
from sp.session import RunOptions, RunResult, TurnResult


@dataclass(frozen=True)
class PromptTokens:
    """What became of a prompt's tokens."""

    cached: int  # those that earlier turns have decided, so that they are not read again
    new: int  # the others
    kept: int  # those that the target attends to when the answer begins
    recalled: int  # of `kept`, those that an earlier turn had dropped
    read: int  # what the target read before it answered: in a session less than it attends to
    drafted: int  # what the drafter read, in its own vocabulary

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


@dataclass
class Told:
    """What else a request comes to.

    `queued`, `render`: seconds in the queue, and until the prompt was rendered; `generated`, `reasoning`: tokens of all
    answers, and of them those of thinking.
    """

    asked: Question | None = None  # what was taken for the question of a chat
    apart: str | None = None  # why the request had no session
    queued: float = 0.0
    render: float = 0.0
    generated: int = 0
    reasoning: int = 0


def usage(result: RunResult | TurnResult, told: Told, options: RunOptions) -> dict[str, Any]:
    """OpenAI's usage block; under `sp` what compression did, what each stage cost and what a draft's guesses gave.

    `options`: as the request asked for them.
    """
    prompt, generated = PromptTokens.of(result), told.generated
    question = {"found": told.asked.found, "tokens": int(result.prompt.mask("question").sum())} if told.asked else None
    found, recalls = (result.found, result.recalled) if isinstance(result, TurnResult) else (None, ())
    stages = [{"name": "render", "tokens": 0, "ms": 1e3 * told.render}]
    stages += [{"name": s.name, "tokens": s.tokens, "ms": 1e3 * s.seconds} for s in result.answer.trace.stages]
    return {
        "prompt_tokens": prompt.total,
        "completion_tokens": generated,
        "total_tokens": prompt.total + generated,
        "prompt_tokens_details": {"cached_tokens": prompt.cached},
        **({"completion_tokens_details": {"reasoning_tokens": told.reasoning}} if told.reasoning else {}),
        "sp": {
            "compressed": prompt.compressed,
            "reason": result.decision.reason,
            "window": result.answer.trace.facts.get("window"),
            **asdict(prompt),
            "kept_tokens": prompt.kept,
            "session": found or "none",
            "session_reason": told.apart,
            "question": question,
            "sampling": asdict(options.decode) if isinstance(options.decode, Sample) else None,
            "recalls": [{name: value for name, value in asdict(span).items() if name != "text"} for span in recalls],
            "positions": result.answer.trace.facts.get("positions", []),
            "dropped": result.answer.trace.facts.get("dropped", []),
            "retrieval": result.answer.trace.facts.get("retrieval", []),
            "math": result.answer.trace.facts.get("math", []),
            "break_even_tokens": result.decision.break_even_tokens,
            "break_even_source": result.decision.break_even_source,
            "acceptance_length": result.answer.acceptance_length,
            "tokens_by_pass": list(result.answer.passes),
            "queue_ms": 1e3 * told.queued,
            "ttft_ms": 1e3 * (told.render + result.answer.ttft_s),
            "stages": stages,
        },
    }


def kept_text(result: RunResult | TurnResult) -> list[dict[str, Any]]:
    """Pieces of the rendered prompt, chat markup included.

    Returns list of dict: ``kind`` (``kept``, ``question``, both of which were read, or ``dropped``), ``text``, together
    all of it, and ``tokens``, how many that is.
    """
    run = None if isinstance(result, TurnResult) else result.selection
    kept = result.present if isinstance(result, TurnResult) else None if run is None else run.kept
    prompt, raw = result.prompt, result.prompt.prompt.text.encode()
    found = kinds(prompt, kept)[whole_characters(prompt)]
    pieces = []
    for start, end in edges(found):
        text = raw[prompt.bytes[start, 0] : prompt.bytes[end - 1, 1]].decode(errors="replace")
        pieces.append({"kind": KINDS[found[start]], "text": text, "tokens": end - start})
    return pieces
