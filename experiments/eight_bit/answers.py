"""What products in int8 do to answers: the embedded pair, every task it can do, in BF16 (float32 here) and in int8.

    python experiments/eight_bit/answers.py --out results        # on the CPU, an hour

Both models of the pair multiply in int8 where they read 512 tokens and more (1,024 when the records were made), so
prompts have a little over 1,024, of which the first 1,024 go through the target together, and all through the
drafter; what is multiplied is counted, and a prompt that is too short for it is an error. Each example is answered
four times: all of it read, and compressed as `sp run` does by default but for a share of KEEP, by either pair (of so
short a prompt the default of 0.05 has room for little besides the question). Whole prompts are decoded with the
embedded draft, which gives the greedy answer and tells how much of its guesses was taken.

A row of ``eight_bit_answers.jsonl`` is one task: right answers of both, the difference of int8 with a bootstrap
interval over examples, answers that are the same word for word; of the compressed ones also the share of kept tokens
that both keep, and Spearman's correlation of the scores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from roundings import bf16, values_of
from scipy.stats import spearmanr

import sp.ops.matmul.linear  # noqa: F401
from sp.bench.record import append, make_record
from sp.errors import ConfigError
from sp.evals import TASKS, Example
from sp.evals.metrics import score_answer
from sp.evals.statistics import paired_difference, wilson
from sp.ops.byte_rows.rows import ByteKind, Rounded
from sp.prompt import TokenisedPrompt
from sp.selection import Selection
from sp.session import Pipeline, RunOptions, embedded
from sp.session.result import Answer, Scored

LENGTHS = {
    **dict.fromkeys(("code", "fact", "multi_session", "needle", "needle_multikey", "nolima", "updates"), 1100),
    "json": 1300,
}
"""Tasks of `sp eval` that the embedded target answers at this length, and the tokens that are asked for, of which texts
may have less. It is right in nearly none of the others."""
EXAMPLES, KEEP = 100, 0.2
linear = sys.modules["sp.ops.matmul.linear"]


class Counted:
    """The twin's products, counted, and in less time.

    A weight is rounded once, for its bytes do not depend on the inputs; and codes are scaled before they are
    multiplied, which gives the same sums but for the rounding of float32.
    """

    def __init__(self) -> None:
        self.products = 0
        self._round = linear.round_rows
        self._weights: dict[tuple[int, tuple[int, ...]], Rounded] = {}

    def product(self, x: Rounded, w: Rounded) -> np.ndarray:
        self.products += 1
        return values_of(x).astype(np.float32) @ w.codes.T + x.loud @ w.loud.T

    def round(self, values: np.ndarray, kind: ByteKind, loud: np.ndarray, apart: bool) -> Rounded:
        if apart:
            return self._round(values, kind, loud, apart)
        key = values.__array_interface__["data"][0], values.shape
        if key not in self._weights:
            made = self._round(values, kind, np.empty(0, np.int64), False)
            self._weights[key] = made._replace(codes=values_of(made).astype(np.float32))
        return self._weights[key]._replace(loud=bf16(values[:, loud]).astype(np.float32))

    @contextmanager
    def watching(self) -> Iterator[None]:
        with patch.object(linear, "byte_product", self.product), patch.object(linear, "round_rows", self.round):
            yield


class Both:
    """The pair in BF16 and in int8."""

    def __init__(self) -> None:
        self.counted = Counted()
        pairs = [Pipeline.open(device="cpu", math=math, drafter_math=math) for math in ("bf16", "int8")]
        self.pairs = [pair.with_draft(embedded("draft")) for pair in pairs]

    def example(self, example: Example) -> dict[str, Any]:
        """What came of one; ConfigError where nothing was multiplied in int8."""
        found: dict[str, Any] = {}
        whole: list[Answer] = []
        part: list[tuple[Scored, np.ndarray, Selection, Answer]] = []
        for math, pair in zip(("bf16", "int8"), self.pairs, strict=True):
            before = self.counted.products
            prompt = pair.tokenise(example.prompt(pair.target.template))
            more = {"max_new_tokens": example.max_new_tokens, "compress": "always"}
            guessing = RunOptions(decode="ddtree", **more)
            whole.append(pair.read(prompt, np.ones(len(prompt), bool), guessing))
            found["products whole", math] = self.counted.products - before
            part.append(compressed(pair, prompt, RunOptions(keep_ratio=KEEP, scorer="tail", **more)))
            found["products", math] = self.counted.products - before
            for way, answer in (("whole", whole[-1]), ("compressed", part[-1][-1])):
                found[way, math] = float(score_answer(answer.text, example.answers, example.match) == 1)
            found["acceptance", math] = whole[-1].acceptance_length
            found["tokens"] = len(prompt)
        if not found["products whole", "int8"]:
            raise ConfigError(f"{example.id} has {found['tokens']} tokens: too few for int8; raise --tokens")
        (_, scores, chosen, short), (_, others, other, theirs) = part
        found["same whole"] = whole[0].text == whole[1].text
        found["same compressed"] = short.text == theirs.text
        both = (chosen.kept & other.kept).sum()
        found["overlap"] = float(both / max(chosen.kept.sum(), 1))
        found["spearman"] = float(spearmanr(scores, others).statistic)
        return found


def compressed(
    pair: Pipeline, prompt: TokenisedPrompt, options: RunOptions
) -> tuple[Scored, np.ndarray, Selection, Answer]:
    """Scores, what is kept, and the answer."""
    scored = pair.score(prompt, options)
    scores, chosen = pair.select(scored, prompt, options)
    return scored, scores, chosen, pair.read(prompt, chosen, options)


def metrics_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the examples of one task."""
    found: dict[str, Any] = {"n": len(rows)}
    for way in ("whole", "compressed"):
        for math in ("bf16", "int8"):
            right = sum(row[way, math] for row in rows)
            found[f"{way}_{math}"] = right / len(rows)
            found[f"{way}_{math}_interval"] = wilson(int(right), len(rows))
        pairs = [[row[way, math] for row in rows] for math in ("int8", "bf16")]
        found[f"{way}_difference"] = paired_difference(*pairs)
        found[f"{way}_same"] = sum(row[f"same {way}"] for row in rows) / len(rows)
    for math in ("bf16", "int8"):
        found[f"acceptance_{math}"] = float(np.mean([row["acceptance", math] for row in rows]))
        found[f"products_{math}"] = dict(Counter(row["products", math] for row in rows))
    found["products_whole_int8"] = dict(Counter(row["products whole", "int8"] for row in rows))
    for name in ("overlap", "spearman"):
        values = [row[name] for row in rows]
        found[name] = {"mean": float(np.mean(values)), "least": float(np.min(values))}
    found["tokens"] = [min(row["tokens"] for row in rows), max(row["tokens"] for row in rows)]
    return found


def shown(name: str, m: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [name]
    for way in ("whole", "compressed"):
        mean, low, high = (100 * part for part in m[f"{way}_difference"])
        cells += [f"{100 * m[f'{way}_bf16']:.0f}, {100 * m[f'{way}_int8']:.0f}"]
        cells += [f"{mean:+.1f} ({low:+.1f} to {high:+.1f})", f"{100 * m[f'{way}_same']:.0f}"]
    cells += [f"{100 * m['overlap']['mean']:.1f}", f"{m['spearman']['mean']:.4f}"]
    cells += [f"{m['acceptance_bf16']:.2f}, {m['acceptance_int8']:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="append the rows below this folder")
    parser.add_argument("-n", type=int, default=EXAMPLES, help="examples a task")
    parser.add_argument("--tasks", default=",".join(LENGTHS))
    asked, both = parser.parse_args(), Both()

    def count(text: str) -> int:
        return len(both.pairs[0].target.tokenizer.encode(text).ids)

    heads = ["task", "whole", "int8 less bf16", "same", "compressed", "int8 less bf16", "same"]
    heads += ["kept by both", "scores", "accepted"]
    print(f"| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}", flush=True)
    for name in asked.tasks.split(","):
        task, tokens, began, rows = TASKS.build(name), LENGTHS[name], time.perf_counter(), []
        with both.counted.watching():
            for index in range(asked.n):
                rows.append(both.example(task.example(index, tokens, count)))
        metrics = metrics_of(rows)
        print(
            shown(name, metrics),
            f"<!-- {time.perf_counter() - began:.0f} s, {metrics['products_int8']} -->",
            flush=True,
        )
        if asked.out is not None:
            config = {"task": name, "tokens": tokens, "target": "target.gguf", "drafter": "drafter.gguf"}
            config |= {"math": "int8", "n": asked.n, "keep_ratio": KEEP, "scorer": "tail"}
            append(make_record("eight_bit_answers", config, metrics, [], [], device="cpu"), asked.out)


if __name__ == "__main__":
    main()
