"""How often the evidence of natural questions is kept whole if chunks begin elsewhere, in two vocabularies.

    python experiments/real/grids.py gemma-3-270m smollm2-135m time-zones-3 cddl-6 --out grids.jsonl

The drafter scores each question's prompt once. Its scores select chunks of 16 of its own tokens, and of the target's
tokens, with the first chunk 16 or 1, 2, ... 15 tokens long. Rows: of these 16 grids, how many keep the evidence whole.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.evals.natural.questions import NaturalQuestion, known_questions
from sp.evals.natural.rows import judge, masks
from sp.hub import model_path
from sp.prompt import TokenisedPrompt, transfer_scores
from sp.selection import Selection, SelectionRequest, token_budget
from sp.selection.ranking import TopChunks, best_first, unit_means
from sp.session import Pipeline, RunOptions, load
from sp.session.compress import selection_request

CHUNK = 16
SPARSE_TOKENS = 16384  # from here on attention is sparse, as in the rows that these are compared with


@dataclass(frozen=True)
class ShiftedChunks(TopChunks):
    """Chunks of which the first has another length."""

    first: int = CHUNK

    def select(self, request: SelectionRequest) -> Selection:
        n = len(request.scores)
        bounds = np.unique([0, *range(self.first, n, CHUNK), n])
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))


def kept_whole(scores: Any, prompt: TokenisedPrompt, keep: float, question: NaturalQuestion, first: int) -> bool:
    """Whether the evidence is kept whole by a grid."""
    protected = prompt.mask("protected")
    request = selection_request(scores, protected, keep, prompt, 0, CHUNK)
    selection = ShiftedChunks(first=first)(request)
    selection = replace(selection, selected=selection.selected | request.protected)
    budget = token_budget(keep, len(prompt), int(protected.sum()))
    return judge(selection, masks(prompt, question), budget).whole


def rows(pipeline: Pipeline, question: NaturalQuestion, shares: list[float]) -> Iterator[dict[str, Any]]:
    """One a keep ratio."""
    target = pipeline.target
    prompt = pipeline.tokenise(question.example().prompt(target.template, tokenizer=target.tokenizer))
    scorer = "late_interaction" + ("[sparse=alpha:0.1]" if len(prompt) >= SPARSE_TOKENS else "")
    scored = pipeline.score(prompt, RunOptions(scorer=scorer))
    drafted, scores = scored.drafted, scored.importance.scores
    transferred = transfer_scores(scores, drafted.bytes, prompt.bytes)
    for keep in shares:
        grids = range(1, CHUNK + 1)
        own = sum(kept_whole(scores, drafted, keep, question, first) for first in grids)
        there = sum(kept_whole(transferred, prompt, keep, question, first) for first in grids)
        yield {
            "question": question.id, "hard": question.hard, "keep_ratio": keep, "drafter_tokens": len(drafted),
            "target_tokens": len(prompt), "grids": CHUNK, "whole_in_drafter_tokens": own,
            "whole_in_target_tokens": there,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("drafter")
    parser.add_argument("questions", nargs="+", help="names of questions that ship")
    parser.add_argument("--keep", type=float, nargs="+", default=[0.2, 0.1, 0.05])
    parser.add_argument("--out", required=True, help="JSON lines to write")
    args = parser.parse_args()
    drafter = load(model_path(args.drafter), device="cpu", extrapolate=True)
    pipeline = Pipeline(load(model_path(args.target), device="cpu"), drafter)
    questions = {question.id: question for question in known_questions()}
    with open(args.out, "a", encoding="utf-8") as out:
        for name in args.questions:
            for row in rows(pipeline, questions[name], args.keep):
                print(row["question"], row["keep_ratio"], row["whole_in_drafter_tokens"], row["whole_in_target_tokens"])
                out.write(json.dumps(row) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
