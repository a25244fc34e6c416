"""The document of ``sp run`` without arguments: ``python sample_document.py ASSETS [--task nolima]``.

The first example of the task of which the pair in ASSETS shows what the README's first command claims: answered right
from the whole prompt and from what the default scorer keeps, while `lexical` loses the evidence. It is one example, and
chosen, so it shows what can happen, not how often.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import sp
from sp.evals import TASKS
from sp.evals.base import Example
from sp.evals.metrics import score_answer
from sp.evals.run import counter
from sp.scoring import SCORERS
from sp.session import Pipeline, RunOptions

KEEP = (0.05, 0.1)
"""Keep ratios at which it must hold: that of ``sp run``, and that of the continuous check."""


def readable(example: Example) -> bool:
    """One sentence of evidence, in the second half, that alone holds the answer, which the question does not."""
    document, needles = example.document, example.needles
    return (
        len(needles) == 1
        and document.count(needles[0]) == 1
        and document.index(needles[0]) > len(document) / 2
        and all(document.count(a) == 1 and a in needles[0] and a not in example.question for a in example.answers)
    )


def tells_apart(pipeline: Pipeline, example: Example) -> bool:
    """Whether the default scorer keeps what answers, at every ratio of `KEEP`, and `lexical` does not."""
    prompt = example.prompt(pipeline.target.template)
    lexical = SCORERS.build("lexical")
    chosen = [
        RunOptions(keep, scorer="tail", compress="always", max_new_tokens=example.max_new_tokens) for keep in KEEP
    ]

    def right(options: RunOptions, full: bool = False) -> bool:
        result = pipeline.run(prompt, options, full=full)
        answers = [result.answer, *([result.full] if result.full else [])]
        return all(score_answer(one.text, example.answers, example.match) == 1 for one in answers)

    if any(right(replace(options, scorer=lexical)) for options in chosen):
        return False
    return all(right(options) for options in chosen) and right(chosen[0], full=True)


def main() -> None:
    """Search and write ``sample.txt`` and ``sample.json``."""
    a = argparse.ArgumentParser()
    a.add_argument("assets", type=Path)
    a.add_argument("--task", default="nolima")
    a.add_argument("--tokens", type=int, default=8150)
    a.add_argument("--tries", type=int, default=60)
    args = a.parse_args()
    pipeline = sp.load(args.assets / "target.gguf", args.assets / "drafter.gguf", device="cpu")
    task, count = TASKS.build(args.task), counter(pipeline.target.tokenizer)
    drawn = (task.example(index, args.tokens, count) for index in range(args.tries))
    found = next((one for one in drawn if readable(one) and tells_apart(pipeline, one)), None)
    if found is None:
        raise SystemExit(f"none of the first {args.tries} examples of {args.task} tells the scorers apart")
    asked = {"question": found.question, "answers": list(found.answers), "needle": found.needles[0]}
    (args.assets / "sample.txt").write_text(found.document)
    (args.assets / "sample.json").write_text(json.dumps(asked, indent=2) + "\n")
    print(found.id, found.question, found.answers, found.needles[0])


if __name__ == "__main__":
    main()
