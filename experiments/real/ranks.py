"""Rank of the evidence by layer and head, rotated and un-rotated: python ranks.py QUESTIONS.jsonl --record FOLDER

A drafter reads every document once and is asked for its fact (`needles.py` makes documents and questions). A chunk of
32 tokens scores the mean of its tokens' weights, of each the largest that a token of the question gives; the chunk with
the attention sink, which is the first, is left out, as a calibration does. One record a kind of text and rotation.
`notebooks/real_weights.ipynb` draws them.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sp.bench.record import append, make_record
from sp.evals.natural.questions import NaturalQuestion, own_questions
from sp.scoring.base import HEATMAP_CHUNK
from sp.scoring.calibration.reading import ROTATIONS, NeedlePhrasing, NeedleText, Sample, read_text
from sp.scoring.calibration.record import file_sha256
from sp.session import Loaded, load


def main() -> None:
    """Read, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--drafter", default="smollm2-135m", help="GGUF file or known name")
    parser.add_argument("-n", type=int, default=8, help="first questions of each kind of text (8: every fact once)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path, required=True, help="folder of records, such as results")
    given = parser.parse_args()
    questions = first_of_each(own_questions(given.questions), given.n)
    loaded = load(given.drafter, device=given.device)
    for record in records(loaded, questions, given.questions.stem):
        append(make_record("evidence_ranks", **record, sources=[], device=given.device), given.record)


def first_of_each(questions: Iterable[NaturalQuestion], count: int) -> list[NaturalQuestion]:
    """The first questions of each kind of text, so many of each."""
    kinds: dict[str, list[NaturalQuestion]] = defaultdict(list)
    for question in questions:
        kinds[question.text_kind].append(question)
    return [question for of in kinds.values() for question in islice(of, count)]


def records(loaded: Loaded, questions: Iterable[NaturalQuestion], name: str) -> Iterator[dict[str, Any]]:
    """What goes into the records of a drafter and a set of questions."""
    samples: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for question in questions:
        sample = read(loaded, question)
        chunks = sample.weights.shape[-2]
        for rotary, counts in zip(ROTATIONS, sample.rank(sample.weights.mean(axis=-1)), strict=True):
            samples[question.text_kind, rotary].append(
                {"question": question.id, "chunks": chunks, "above": counts.tolist()}
            )
        print(f"{question.id}: {chunks} chunks", flush=True)
    for (kind, rotary), of in samples.items():
        config = {
            "drafter": file_sha256(loaded.path), "set": name, "kind": kind, "rotary": rotary, "queries": "question",
            "over_queries": "max", "chunk": HEATMAP_CHUNK, "layers": list(loaded.model.config.attention_layers),
        }  # fmt: skip
        yield {"config": config, "metrics": metrics(of, config["layers"]), "samples": of}


def read(loaded: Loaded, question: NaturalQuestion) -> Sample:
    """What the drafter shows of a question that has its evidence in one place."""
    ((place,),) = question.evidence
    (quote,) = question.quotes((place,))
    text = NeedleText(question.text_kind, question.text, (NeedlePhrasing(quote, question.question),))
    (sample,) = read_text(loaded.model, loaded.tokenizer, loaded.template, text, half=0)
    return sample


def metrics(samples: list[dict[str, Any]], layers: list[int]) -> dict[str, Any]:
    """The head with the least median share of chunks above the evidence, and that share."""
    shares = np.median(above(samples), axis=0)
    place, head = np.unravel_index(shares.argmin(), shares.shape)
    return {
        "n": len(samples), "chunks": median(sample["chunks"] for sample in samples),
        "best_layer": layers[int(place)], "best_head": int(head), "best_share": round(float(shares.min()), 4),
    }  # fmt: skip


def above(samples: list[dict[str, Any]]) -> np.ndarray:
    """Share of the other chunks that rank above the evidence: float64 (samples, attention layers, heads)."""
    return np.stack([np.array(sample["above"]) / (sample["chunks"] - 2) for sample in samples])


if __name__ == "__main__":
    main()
