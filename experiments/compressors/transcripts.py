"""Natural questions as transcripts of an agent that read the document part by part: python transcripts.py -o FILE"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sp.evals.natural.questions import NaturalQuestion, known_questions

PART = 4000  # bytes of a part at most, but for lines that are longer
LATER = "Thank you. Which part was the longest?"


def parts(text: str) -> list[str]:
    """A text cut at ends of lines."""
    found, size = [""], 0
    for line in text.splitlines(keepends=True):
        if size and size + len(line.encode()) > PART:
            found.append("")
            size = 0
        found[-1] += line
        size += len(line.encode())
    return found


def transcript(question: NaturalQuestion) -> list[dict[str, Any]]:
    """Messages as chat completions have them."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read the document, part by part."}]
    for number, part in enumerate(parts(question.text)):
        call = {"name": "read_part", "arguments": json.dumps({"number": number})}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        messages += [
            {"role": "assistant", "content": "I read the next part.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"c{number}", "content": part},
        ]
    return [
        *messages,
        {"role": "assistant", "content": "I have read it."},
        {"role": "user", "content": question.question},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=1 << 20, help="bytes of a document, at most")
    given = parser.parse_args()
    with given.out.open("w") as file:
        for one in known_questions():
            if len(one.raw) <= given.most:
                told = {"id": one.id, "hard": one.hard, "evidence": [one.quotes(places) for places in one.evidence]}
                file.write(json.dumps(told | {"messages": transcript(one), "later": LATER}) + "\n")


if __name__ == "__main__":
    main()
