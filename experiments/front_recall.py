"""Does what a front left out come back when a later question needs it?

    python experiments/real/needles.py "$SP_CACHE_DIR/natural" -o needles --tokens 6k -n 16
    python experiments/front_recall.py needles/needles-6k.jsonl --scorers auto bm25 random --record results

The first turn asks something of a document that says nothing of the fact hidden in it; the second asks for the fact.
Counted are transcripts in which the fact was left out, and those of them in which the second request has it again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sp.bench.record import append, make_record
from sp.evals.natural.questions import NaturalQuestion, own_questions
from sp.evals.summary import wilson
from sp.front.history import History
from sp.front.rules import Rules
from sp.front.shorten import Compressor

FIRST, SAID = "Who wrote this, and when?", "It does not say."


def turns(compressor: Compressor, question: NaturalQuestion, ratio: float) -> tuple[bool, bool]:
    """Whether the fact was left out in the first turn, and whether the second has it."""
    history, rules, places = History(compressor), Rules(ratio, 0), question.evidence[0]
    start, end = places[0] if isinstance(places[0], tuple) else places
    fact = question.raw[start:end].decode()
    messages = [{"role": "user", "content": f"{question.text}\n\n{FIRST}"}]
    first = history.shorten("chat", {"messages": messages}, rules).body["messages"]
    messages += [{"role": "assistant", "content": SAID}, {"role": "user", "content": question.question}]
    second = history.shorten("chat", {"messages": messages}, rules).body["messages"]
    assert second[0] == first[0], "what was decided is written the same"
    return fact not in first[0]["content"], any(fact in each["content"] for each in second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--scorers", nargs="+", default=["auto", "bm25", "random"])
    parser.add_argument("--keep-ratio", type=float, default=0.1)
    parser.add_argument("-n", type=int, help="questions, spread over the file")
    parser.add_argument("--record", type=Path, help="folder of records")
    given = parser.parse_args()
    questions = own_questions(given.questions)
    questions = questions[:: max(len(questions) // given.n, 1)][: given.n] if given.n else questions
    for scorer in given.scorers:
        compressor = Compressor.open("smollm2-135m", scorer=scorer)
        found = [back for one in questions for out, back in [turns(compressor, one, given.keep_ratio)] if out]
        low, high = wilson(sum(found), len(found))
        metrics = {"recalled": sum(found), "n": len(found), "asked": len(questions), "low": low, "high": high}
        print(f"{scorer}: {sum(found)} of {len(found)} came back ({low:.0%} to {high:.0%})", flush=True)
        if given.record:
            told = {"set": given.questions.stem, "scorer": scorer, "keep_ratio": given.keep_ratio}
            append(make_record("front_recall", told, metrics, [], [], device=compressor.device), given.record)


if __name__ == "__main__":
    main()
