"""Evidence kept when the drafter's keys and values lie packed in its cache, as conversations keep them.

    python experiments/real/kept_keys.py --drafter smollm2-135m --device cuda --out kept_keys.jsonl

The questions are those that ship, about documents of at most --tokens tokens, the same for all types of caches. With
`f16` the drafter reads into a cache as conversations have it, and then the question once more, as a later turn would,
so that the document's keys are those that were stored; `none` is a single prompt, which keeps nothing.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.evals.natural.questions import NaturalQuestion, known_documents, known_questions, missing_documents
from sp.evals.natural.rows import judge, masks
from sp.evals.summary import wilson
from sp.models import KVType
from sp.prompt import TokenisedPrompt
from sp.scoring import PrefixKeys
from sp.selection import token_budget
from sp.session import Pipeline, RunOptions
from sp.session.memory import DrafterMemory, message_ends
from sp.session.options import check_run
from sp.session.request import score
from sp.trace import Trace

KEEP = (0.2, 0.1, 0.05)


@dataclass
class Empty:
    """A conversation's memory of the drafter before the first turn, as `score` asks for keys."""

    pipeline: Pipeline
    options: RunOptions
    kv: str

    @cached_property
    def memory(self) -> DrafterMemory:
        """Keys of nothing yet, to be filled."""
        return DrafterMemory(self.pipeline.drafter, check_run(self.options, self.pipeline.drafter), self.kv, 8)

    def keys(self, drafted: TokenisedPrompt) -> PrefixKeys:
        """Keys of what was read before."""
        return self.memory.keys(drafted.ids, message_ends(drafted))


def rows(
    pipeline: Pipeline, question: NaturalQuestion, types: list[str], scorer: str, tokens: int
) -> list[dict[str, Any]]:
    """Whether the evidence is kept, by type of cache and share."""
    found = []
    template, tokenizer = pipeline.target.template, pipeline.target.tokenizer
    prompt = pipeline.tokenise(question.example().prompt(template, tokenizer=tokenizer))
    if len(prompt) > tokens:
        return []
    evidence, protected = masks(prompt, question), int(prompt.mask("protected").sum())
    for kv in types:
        options = RunOptions(scorer=scorer)
        memory: Any = None if kv == "none" else Empty(pipeline, options, kv)
        scored = score(pipeline, prompt, options, memory=memory)
        if memory is not None:
            scored = score(pipeline, prompt, options, memory=memory)
        for keep in KEEP:
            cell = RunOptions(scorer=scorer, keep_ratio=keep)
            _, selection = pipeline.select(scored, prompt, cell, Trace())
            whole = judge(selection, evidence, token_budget(keep, len(prompt), protected)).columns()["whole"]
            found.append({
                "question": question.id, "hard": question.hard, "kv": kv, "scorer": scorer, "keep_ratio": keep,
                "whole": bool(whole), "prompt_tokens": len(prompt),
            })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--scorer", default="auto")
    parser.add_argument("--kv", nargs="+", default=["none", "f16", "q8_0", "5bit", "4bit", "q4_0"])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        args.kv = [kv if kv == "none" else KVType.parse(kv, "--kv") for kv in args.kv]
    except ConfigError as error:
        parser.error(str(error))
    pipeline = Pipeline.open(
        args.drafter, args.drafter, device=args.device, scorers=[RunOptions(scorer=args.scorer).scorer]
    )
    missing = {document.name for document in missing_documents(known_documents())}
    done = [json.loads(line) for line in args.out.read_text("utf-8").splitlines()] if args.out.exists() else []
    known = {(row["question"], row["kv"], row["scorer"]) for row in done}
    with args.out.open("a", encoding="utf-8") as out:
        for question in known_questions():
            types = [kv for kv in args.kv if (question.id, kv, args.scorer) not in known]
            if question.document in missing or not types:
                continue
            for row in rows(pipeline, question, types, args.scorer, args.tokens):
                done.append(row)
                out.write(json.dumps(row) + "\n")
            out.flush()
    groups = defaultdict(list)
    for row in (row for row in done if row["scorer"] == args.scorer):
        groups[row["keep_ratio"], row["kv"], "hard" if row["hard"] else "easy"].append(row["whole"])
    for (keep, kv, kind), kept in sorted(groups.items(), reverse=True):
        low, high = wilson(sum(kept), len(kept))
        print(f"keep {keep:4} {kind} {kv:5} {sum(kept):4} of {len(kept)}  {100 * low:.0f}-{100 * high:.0f} %")


if __name__ == "__main__":
    main()
