"""Prompts of a task of `sp eval` as the JSON lines that `sp_needle.yaml` reads, for lm-evaluation-harness.

    python experiments/lm_eval/make_sp_needle.py sp_needle.jsonl [--task needle] [--tokens 2000] [--n 20] [--seed 0]

Lengths are counted in the vocabulary of the embedded target, or of `--target`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sp.evals import TASKS
from sp.evals.run import counter
from sp.gguf import GGUFFile, Tokenizer
from sp.session import embedded
from sp.trace import write_atomic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="needle", help="a task whose examples have one answer")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=Path, default=embedded("target"))
    asked = parser.parse_args()
    task = TASKS.build(asked.task, {"seed": asked.seed})
    count = counter(Tokenizer.from_gguf(GGUFFile.open(asked.target)))
    lines = []
    for index in range(asked.n):
        made = task.example(index, asked.tokens, count)
        if len(made.answers) > 1:
            parser.error(f"task {asked.task} has several answers; exact match takes one")
        facts = {"id": made.id, "document": made.document, "question": made.question, "answer": made.answers[0]}
        lines.append(json.dumps(facts, ensure_ascii=False) + "\n")
    write_atomic(asked.out, "".join(lines).encode())


if __name__ == "__main__":
    main()
