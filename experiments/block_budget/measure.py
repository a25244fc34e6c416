"""How many key blocks a drafter may read: rules for their number against dense attention, a fixed share and chance.

    python experiments/block_budget/measure.py -n 6 --tokens 8192 --seed 1 --seed 2     # on the CPU, minutes
    python experiments/block_budget/measure.py --drafter retriever --tokens 1048576 --rule constant:16
    python experiments/block_budget/measure.py --drafter embedded --tokens 131072 --device cuda
    python experiments/block_budget/measure.py --drafter embedded --task updates --tokens 8192 -n 24
    python experiments/block_budget/measure.py --table                                # measures nothing

Two drafters read one prompt a cell, by one rule; then it is asked about its needles, one question after the other, each
read behind the keys of the shared beginning. Tokens are scored by `tail`, KEEP of them are kept in chunks of 32:

`embedded`    the drafter of the embedded pair, trained; text of task `needle` with all needles in it, of one phrasing;
              of another task every question has a text of its own, and its evidence is what should be kept
`retriever`   constructed for a million positions (`sp.models.synthetic.retriever`), random tokens. Of its two layers
              the first, which attends by the rule, looks four tokens back, and the second is scored and does not
              attend: what it keeps shows that reading by the rule leaves the keys right at such lengths, no more

A row of ``block_budget.jsonl`` has the share of causal blocks that was read; whether each needle's value was kept; and
whether the rule, asked by the last eight queries alone, lists the needle's block: the share of scored layers and heads
that do, of which chance is the share of blocks they list. `constant:1` reads the forced blocks alone; `random` reads
nothing. Rows that are there are not measured again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from prompts import Asked, documents, examples, random_tokens, shared
from report import RULES, rows_of, tables

from sp.bench.record import append, make_record
from sp.models import Model, Trail, load_model
from sp.models.synthetic.retriever import write_retriever
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.paged_kv import PagedKV
from sp.pipeline import embedded, load
from sp.scoring import SCORERS, Importance, ScoreRequest
from sp.scoring.attention.attention import importance_of
from sp.scoring.attention.reduction import Fold
from sp.scoring.attention.tail import TailScorer, padded, without_markup
from sp.scoring.base import KeptKeys
from sp.selection import SELECTORS, SelectionRequest

KEEP = 0.05
MOST = {"dense": 40_000, "density 0.05": 140_000, "energy:0.9": 140_000}
"""Tokens beyond which a rule is left out unless it is asked for: on the CPU it would take too long."""
LISTED = 300_000
"""Tokens up to which listing is looked at: it takes the mean keys of all blocks for every question."""


def scorer_of(rule: str) -> TailScorer:
    """The scorer that reads by a rule; all blocks are listed for `dense`, so that the same code attends."""
    scorer = SCORERS.build("tail", {"sparse": "alpha:0" if rule == "dense" else rule.replace(" ", ":")})
    assert isinstance(scorer, TailScorer)
    return scorer


def asked_of(scorer: TailScorer, request: ScoreRequest, first: int, look: bool) -> tuple[Importance, list[Any]]:
    """What the scorer finds, and by layer whether each head lists the needle's first block, and how much of all."""
    fold, listed = Fold(scorer.reduction()), []
    selector = replace(scorer.choice(), last_n=0)

    def take(_: int, q: Any, keys: PagedKV) -> None:
        fold.add_layer(q, keys, causal=True)
        if look:
            lists = selector.select(q, keys, q.shape[2] ** -0.5)
            counts, indices = (a if isinstance(a, np.ndarray) else a.get() for a in (lists.counts, lists.indices))
            for count, row in zip(counts[:, 0], indices[:, 0], strict=True):
                listed.append((first // BLOCK in row[:count], count / -(-keys.tokens // BLOCK)))

    asking = without_markup(request)
    return padded(importance_of(fold, scorer.read(asking, take)), len(request.ids)), listed


def measured(model: Model, prompts: list[Asked], rule: str) -> dict[str, Any]:
    """One reading by a rule, and all its questions."""
    blind = rule == "random"
    scorer = None if blind else scorer_of(rule)
    trail = None if scorer is None else Trail(scorer.kept_layers(model.config) or model.config, device=model.device)
    common, kept, listed = shared(prompts), [], []
    densities: list[float] = []
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        n = len(prompt.ids)
        request = ScoreRequest(
            model, prompt.ids, np.arange(n), prompt.question, prompt.value, seed=number, asked=prompt.asked
        )  # fmt: skip
        if scorer is None or trail is None:
            found = SCORERS.build("random").score(request)
        else:
            trail.back_to(min(common, trail.tokens))
            request = replace(request, keys=KeptKeys(trail))
            found, heads = asked_of(scorer, request, int(prompt.value.argmax()), n <= LISTED)
            listed += heads
        densities += found.densities
        if number == 0:
            seconds = time.perf_counter() - start
        chosen = SELECTORS.build("top_chunks").select(SelectionRequest(found.scores, prompt.protected, KEEP))
        kept.append(bool(chosen.kept[prompt.value].all()))
    return {
        "prompt_tokens": len(prompts[0].ids),
        "density": float(np.mean(densities)) if densities else None,
        "kept": sum(kept),
        "questions": len(kept),
        "each": kept,
        "listed": float(np.mean([hit for hit, _ in listed])) if listed else None,
        "listed_by_chance": float(np.mean([share for _, share in listed])) if listed else None,
        "first_question_s": seconds,
    }


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the machines' records")
    parser.add_argument("--drafter", choices=("embedded", "retriever"), action="append", help="only this one")
    parser.add_argument("--task", default="needle", help="of the embedded drafter; all but needle: a text a question")
    parser.add_argument("--tokens", type=int, action="append", help="a length; repeatable")
    parser.add_argument("--rule", action="append", help="dense, random, density SHARE or as `blocks`; repeatable")
    parser.add_argument("-n", "--questions", type=int, default=24, help="needles of a prompt")
    parser.add_argument("--seed", type=int, action="append", help="another number makes other prompts; repeatable")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    if not given.table:
        measure(given)
    print(tables(rows_of(given.results)))


def measure(given: argparse.Namespace) -> None:
    """Append the rows that are missing."""
    done = [row["config"] for row in rows_of(given.results)]
    for name in given.drafter or ("embedded", "retriever"):
        other = name == "embedded" and given.task != "needle"
        if name == "embedded":
            drafter = load(embedded("drafter"), extrapolate=True, device=given.device)
            model = drafter.model
        else:
            with tempfile.TemporaryDirectory() as folder:
                file = write_retriever(
                    Path(folder) / "r.gguf", "retriever-qwen3", "f16", seed=5, ngram=4, context=1 << 20
                )
                model = load_model(file, device=given.device)
        for tokens, seed in product(given.tokens or (8192, 32768), given.seed or (1,)):
            prompts: list[Asked] = []
            for rule in given.rule or [rule for rule in RULES if tokens <= MOST.get(rule, tokens)]:
                config = {"drafter": name, "tokens": tokens, "rule": rule, "questions": given.questions}
                config |= {"keep_ratio": KEEP, "seed": seed} | ({"task": given.task} if other else {})
                if config in done:
                    continue
                if name == "retriever":
                    prompts = prompts or random_tokens(tokens, given.questions, seed)
                elif other:
                    prompts = prompts or examples(drafter, given.task, tokens, given.questions)
                else:
                    prompts = prompts or documents(drafter, tokens, given.questions, seed)
                found = measured(model, prompts, rule)
                append(
                    make_record("block_budget", config, found, [found["first_question_s"]], device=given.device),
                    given.results,
                )
                print(f"{name}, {tokens} tokens, {rule}: {found['kept']} of {found['questions']}", file=sys.stderr)


if __name__ == "__main__":
    main()
