"""Seconds until a front has a long text shortened: nothing of it read before, and only the question new.

    python experiments/front_text.py "$SP_CACHE_DIR/natural" --drafter smollm2-135m -p 131072 --record results

The text is that of the natural documents, repeated up to the length. A header of its own makes each text new to the
drafter from its first tokens on. The first `WARM` texts are not counted, as they may compile kernels.
"""

from __future__ import annotations

import argparse
import time
from itertools import cycle
from pathlib import Path
from statistics import median

from sp.bench.record import append, make_record
from sp.front.shorten import Compressor
from sp.prompt import Prompt

WARM = 2
QUESTIONS = (
    "What is the name of the cat?",
    "How is a route declared?",
    "Who banished Rosalind?",
    "How is a document parsed?",
    "What colour is the caterpillar?",
    "Which year was the coldest?",
)


def natural_text(folder: Path, compressor: Compressor, tokens: int) -> str:
    """Return text of about so many of the drafter's tokens."""
    text = "".join(path.read_text() for path in sorted(folder.glob("*.txt")))
    assert compressor.pipeline.drafter is not None
    counted = len(Prompt(text[:400_000]).tokenise(compressor.pipeline.drafter.tokenizer).ids)
    length = tokens * len(text[:400_000]) // counted
    return (text * (length // len(text) + 1))[:length]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of natural documents")
    parser.add_argument("--drafter", help="GGUF file or known name; by default the best one fetched")
    parser.add_argument("--scorer", default="auto")
    parser.add_argument("--keep-ratio", type=float, default=0.05)
    parser.add_argument("-p", "--tokens", type=int, default=131072)
    parser.add_argument("-n", type=int, default=12, help="texts")
    parser.add_argument("--record", type=Path, help="folder of records")
    options = parser.parse_args()
    compressor = Compressor.open(options.drafter, scorer=options.scorer, keep_ratio=options.keep_ratio)
    text = natural_text(options.folder, compressor, options.tokens)
    new: list[float] = []
    again: list[float] = []
    questions = cycle(QUESTIONS)
    for number in range(options.n + WARM):
        body, question = f"Header {number}.\n{text}", next(questions)
        for asked, seconds in ((question, new), (f"{question} Say it.", again)):
            start = time.perf_counter()
            short = compressor.compress(body, asked)
            seconds.append(time.perf_counter() - start)
        print(f"{number} {short.tokens} tokens, new {new[-1]:.3f} s, question alone new {again[-1]:.3f} s", flush=True)
    new, again = new[WARM:], again[WARM:]
    print(
        f"{compressor.name} on {compressor.device}: new {median(new):.3f} s, question alone new {median(again):.3f} s"
    )
    if options.record:
        config = {"drafter": compressor.name, "scorer": options.scorer, "keep_ratio": options.keep_ratio}
        config |= {"tokens": short.tokens}
        metrics = {"new_s": median(new), "again_s": median(again), "n": len(new)}
        record = make_record("front_text", config, metrics, new, device=compressor.device)
        append(record, options.record)


if __name__ == "__main__":
    main()
