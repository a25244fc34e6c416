"""How a file reads phrases that no training saw, by full prefill: ``python held_out.py FILE NAME RECORD [options]``.

One line a task goes to RECORD: ``model, task, tokens, phrases, first_example, n, right, date``. Quicker to run between
two parts than `sp eval discriminates`, since there is no drafter and nothing is compressed. With ``--answers FILE``
every answer goes there besides, to be read one by one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from parts import TASKS as TRAINED

from sp.evals import TASKS
from sp.evals.run import counter, evaluate
from sp.session import Pipeline

ANSWERED = ("depth", "expected", "answer")
"""What is told of an answer, where its task has it."""


def main() -> None:
    """Read the examples and write the lines."""
    a = argparse.ArgumentParser()
    a.add_argument("file", type=Path)
    a.add_argument("name", help="of the model in the record")
    a.add_argument("record", type=Path)
    a.add_argument("--tasks", default=",".join(TRAINED[1:]), help="all that are trained by default")
    a.add_argument("--tokens", type=int, default=2048)
    a.add_argument("-n", type=int, default=20)
    a.add_argument("--first", type=int, default=1000, help="example to begin with; evaluations begin with 0")
    a.add_argument("--answers", type=Path, help="a line an answer")
    a.add_argument("--device", default="auto")
    args = a.parse_args()
    pipeline = Pipeline.open(args.file, args.file, device=args.device)
    count = counter(pipeline.target.tokenizer)
    for name in args.tasks.split(","):
        task = TASKS.build(name, {})
        examples = (task.example(args.first + i, args.tokens, count) for i in range(args.n))
        rows = list(evaluate(pipeline, examples, []))
        right = sum(int(row["correct"]) for row in rows)
        asked = {"model": args.name, "task": name, "tokens": args.tokens}
        if args.answers:
            with args.answers.open("a") as file:
                for example, row in enumerate(rows, args.first):
                    told = {"example": example} | {key: row[key] for key in ANSWERED if key in row}
                    file.write(json.dumps(asked | told | {"right": int(row["correct"])}) + "\n")
        line = asked | {"phrases": "held_out"}
        line |= {"first_example": args.first, "n": args.n, "right": right, "date": time.strftime("%Y-%m-%d")}
        with args.record.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
