"""What linear and YaRN scaling of RoPE do to a drafter's scores, within the positions it was made for and beyond.

    python experiments/rope_scaling/measure.py --out results/rope-scaling        # on the CPU

Two drafters read prompts with one needle, scorers score them, and of each prompt three tenths are kept in chunks:

`retriever`   constructed for 256 positions, 2 % noise on its weights; its prompts are as long as the reach says, random
              bytes that end with the key of the needle (`sp.models.synthetic.retriever`); chunks of 8
`embedded`    trained to 163,840 positions, of which some were skipped; its prompts have 1,024 tokens, and those behind
              the middle between needle and question stand so much later that the last one is where the reach says;
              chunks of 32

Reach is the last position over those that the drafter was made for. A row of `rows.jsonl` is one prompt, scorer and
scaling; those that are there are not measured again. The table is printed and written to `table.md`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sp.evals import TASKS
from sp.evals.metrics import Evidence, caught
from sp.evals.run import counter
from sp.evals.statistics import wilson
from sp.models import AskedScaling
from sp.models.synthetic.retriever import write_retriever
from sp.scoring import SCORERS, ScoreRequest
from sp.selection import SELECTORS, SelectionRequest
from sp.session import Loaded, embedded, load
from sp.studies.tables.report_tables import markdown
from sp.trace import write_atomic

MADE_FOR = 256
TOKENS = 1024
KEEP = 0.3
REACHES = {"retriever": (1.0, 2.0, 4.0, 8.0), "embedded": (0.25, 1.0, 2.0, 4.0)}
CHUNK = {"retriever": 8, "embedded": 32}
ROPES = ("none", "linear:2", "linear:4", "yarn:2", "yarn:4")
SCORED_BY = ("tail", "mid_layer")
PRINTABLE = 32, 127
KEYS = ("drafter", "rope", "reach", "scorer", "example")


@dataclass(frozen=True)
class Case:
    """A prompt as a scorer gets it, and where its evidence stands."""

    ids: np.ndarray
    positions: np.ndarray
    question: np.ndarray
    needle: np.ndarray
    values: np.ndarray
    protected: np.ndarray
    text: bytes
    spans: np.ndarray | None


def retriever_case(reach: float, index: int) -> Case:
    """Random bytes, a key of 3 with a value of 5 in the first nine tenths, and the key again at the end."""
    n = round(MADE_FOR * reach)
    rng = np.random.default_rng([index, n])
    ids = rng.integers(*PRINTABLE, n)
    at = int(rng.integers(32, int(0.9 * n)))
    ids[-3:] = ids[at : at + 3]
    needle, values, last = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, bool)
    needle[at : at + 8], values[at + 3 : at + 8], last[-8:] = True, True, True
    return Case(ids, np.arange(n), last, needle, values, last, b"", None)


def embedded_case(drafter: Loaded, trained: int, reach: float, index: int) -> Case:
    """The task `needle` with a gap in the positions."""
    example = TASKS.build("needle").example(index, TOKENS, counter(drafter.tokenizer))
    prompt = example.prompt(drafter.template).tokenise(drafter.tokenizer)
    evidence, question = Evidence.of(prompt, example.answers), prompt.mask("question")
    positions = np.arange(len(prompt))
    middle = (int(evidence.needles[0].nonzero()[0][-1]) + int(question.argmax())) // 2
    positions[middle:] += round(trained * reach) - len(prompt)
    return Case(
        *(prompt.ids, positions, question, evidence.needles[0], evidence.values, prompt.mask("protected")),
        *(prompt.prompt.text.encode(), prompt.bytes),
    )


def measured(drafter: Loaded, case: Case, scorer: str, chunk: int) -> dict[str, Any]:
    """What the scorer finds, and what is kept by it."""
    request = ScoreRequest(drafter.model, case.ids, case.positions, case.question, case.needle)
    scores = SCORERS.build(scorer).score(request).scores
    request_of = SelectionRequest(scores, case.protected, KEEP, case.text, case.spans)
    chosen = SELECTORS.build("top_chunks", {"chunk_size": chunk}).select(request_of)
    found = caught(chosen, Evidence((case.needle,), case.values))
    assert found is not None, "there is a needle"
    return {"complete": found.complete, "recall": found.recall, "rank": found.rank, "chunks": len(chosen.chunk_scores)}


def drafters(name: str, folder: Path) -> Iterator[tuple[str, Loaded]]:
    """The drafter under every scaling; positions are not limited."""
    file = embedded("drafter")
    if name == "retriever":
        file = write_retriever(folder / "r.gguf", "retriever-qwen3", seed=5, noise=0.02, context=MADE_FOR)
    for rope in ROPES:
        yield rope, load(file, extrapolate=True, device="cpu", rope=AskedScaling.parse(rope, "ROPES"))


def measure(name: str, examples: int, rows: Path) -> None:
    """Append the rows that are missing."""
    done = {tuple(row[key] for key in KEYS) for row in read(rows)}
    with tempfile.TemporaryDirectory() as folder, rows.open("a") as out:
        trained = 0
        for rope, drafter in drafters(name, Path(folder)):
            trained = trained or drafter.trained or 0  # of the first, which is not scaled
            for reach, index, scorer in product(REACHES[name], range(examples), SCORED_BY):
                key = (name, rope, reach, scorer, index)
                if key in done:
                    continue
                made = retriever_case(reach, index) if name == "retriever" else None
                case = made or embedded_case(drafter, trained, reach, index)
                start = time.perf_counter()
                found = measured(drafter, case, scorer, CHUNK[name])
                row = dict(zip(KEYS, key, strict=True)) | found
                row |= {"tokens": len(case.ids), "last_position": int(case.positions[-1])}
                out.write(json.dumps(row | {"seconds": round(time.perf_counter() - start, 3)}) + "\n")
                out.flush()


def read(rows: Path) -> list[dict[str, Any]]:
    """What was measured before."""
    return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Share of prompts whose whole value was kept, with its interval, and the median rank of the needle's chunk."""
    parts = []
    for name in dict.fromkeys(row["drafter"] for row in rows):
        heads = ["scorer", "rope", *(f"reach {reach:g}" for reach in REACHES[name])]
        lines = []
        for scorer in SCORED_BY:
            for rope in ROPES:
                cells = []
                for reach in REACHES[name]:
                    want = {"drafter": name, "rope": rope, "reach": reach, "scorer": scorer}
                    found = [row for row in rows if want.items() <= row.items()]
                    cells.append(cell(found) if found else "-")
                lines.append([scorer, rope, *cells])
        parts.append(f"## {name}\n\n{markdown(heads, lines)}")
    return "\n\n".join(parts) + "\n"


def cell(rows: list[dict[str, Any]]) -> str:
    """Kept of all, Wilson 95 % interval of that share, and the median rank."""
    kept, n = sum(row["complete"] for row in rows), len(rows)
    low, high = wilson(kept, n)
    rank = float(np.median([row["rank"] or row["chunks"] for row in rows]))
    return f"{kept}/{n} ({100 * low:.0f} to {100 * high:.0f} %), {rank:g} of {rows[0]['chunks']}"


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of rows.jsonl and table.md")
    parser.add_argument("-n", "--examples", type=int, default=10, help="prompts a cell")
    parser.add_argument("--drafter", choices=("retriever", "embedded"), action="append", help="only this one")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.drafter or ("retriever", "embedded"):
        measure(name, given.examples, given.out / "rows.jsonl")
    text = table(read(given.out / "rows.jsonl"))
    write_atomic(given.out / "table.md", text.encode())
    print(text)


if __name__ == "__main__":
    main()
