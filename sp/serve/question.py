"""Which part of the user's last turn is its question, where clients send a document and the question as one string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from sp.gguf import Tokenizer
from sp.prompt import DOCUMENT_MARK
from sp.serve.options import Protect

Found = Literal["turn", "part", "paragraph", "sentence", "line", "end"]
"""Whether the question is all of the turn, its last part, or of that the last paragraph, sentence, line or words."""
FOUND: tuple[Found, ...] = get_args(Found)

LONG = 512
"""Tokens of a text that is no question as a whole: a longer one holds a document."""
LONGEST = 1024
"""Characters of a question in a longer text; what is longer is no paragraph, sentence or line that asks."""
LONGEST_OPENING = 256
"""Characters of a first paragraph that is kept as well: it says what the document is, or asks before it."""
CUE = 32
"""Characters of a paragraph that, with a colon at its end, only says where the answer goes."""
LONGEST_TOKEN = 16
"""Characters of a token, on average, of texts that may be short; none of that many characters a token is counted."""
BREAK = re.compile(r"(?<=[.!?:;])\s+|(?<=[。！？；：])\s*|\n+")
"""Between sentences, and between lines."""
ASKS = ("?", "？", "؟")


@dataclass(frozen=True)
class Question:
    """Where in a turn, whose parts are joined by blank lines, its question begins.

    Parameters
    ----------
    start : int
        Its first character.
    found : str
        As `Found` says.
    opening : int
        Characters of the turn's beginning that are kept as well.
    """

    start: int
    found: Found
    opening: int = 0


def question_of(parts: Sequence[str], protect: Protect, tokenizer: Tokenizer, keep_ratio: float = 1.0) -> Question:
    """The question of a turn.

    Parameters
    ----------
    parts : sequence of str
        Of the turn; all but the last are documents.
    protect : {"auto", "turn", "paragraph"}
        "turn": all of the last part. "paragraph": what follows its last blank line. "auto": all of it up to `LONG`
        tokens; of a longer one the last paragraph; where there is none, or one of over `LONGEST` characters, the last
        sentence that asks and what follows; else the last line, sentence, or words.
    tokenizer : Tokenizer
        That counts.
    keep_ratio : float
        Share of the turn that may be kept; an opening paragraph stays only if half of that holds it and the question.

    Examples
    --------
    >>> from sp.session import embedded, load
    >>> tokenizer = load(embedded("target"), device="cpu").tokenizer
    >>> text = "The grass is green. " * 400
    >>> question_of([f"{text}\\n\\nWhat is green?"], "auto", tokenizer).found
    'paragraph'
    >>> asked = question_of([f"{text}What is green? Answer briefly."], "auto", tokenizer)
    >>> asked.found, f"{text}What is green? Answer briefly."[asked.start:]
    ('sentence', 'What is green? Answer briefly.')
    """
    last, whole = parts[-1], DOCUMENT_MARK.join(parts)
    before = len(whole) - len(last)
    if protect == "turn" or (protect == "auto" and not _long(last, tokenizer)):
        return Question(before, "part" if before else "turn")
    if protect == "paragraph":
        return Question(before + _paragraph(last.rstrip()), "paragraph")
    at, found = _asking(last.rstrip())
    opening = _opening(whole)
    fits = 2 * (opening + len(last) - at) <= keep_ratio * len(whole)
    return Question(before + at, found, opening if fits and opening < before + at else 0)


def _long(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text has over `LONG` tokens; a long one is not counted to its end."""
    if len(text.encode()) <= LONG:  # a token is a byte at least
        return False
    begin = text[: LONG * LONGEST_TOKEN]
    return len(begin) < len(text) or len(tokenizer.encode(begin)) > LONG


def _asking(body: str) -> tuple[int, Found]:
    """Where in the end of a text its question begins, and what that is."""
    at = _paragraph(body)
    if at and len(body) - at <= CUE and body.endswith(":"):  # "Answer:" asks nothing
        at = _paragraph(body[:at].rstrip())
    if at and len(body) - at <= LONGEST:
        return at, "paragraph"
    first = max(len(body) - LONGEST, 0)
    starts = [match.end() for match in BREAK.finditer(body, first) if match.end() < len(body)]
    for start, end in reversed([*pairwise([*starts, len(body)])]):
        if body[start:end].rstrip().endswith(ASKS):
            return start, "sentence"
    if first < (line := body.rfind("\n") + 1):
        return line, "line"
    if starts:
        return starts[-1], "sentence"
    return max(body.find(" ", first) + 1, first), "end"


def _paragraph(body: str) -> int:
    """Where the last paragraph begins; 0 if there is but one."""
    head, mark, _ = body.rpartition(DOCUMENT_MARK)
    return len(head) + len(mark)


def _opening(text: str) -> int:
    """Characters of a first paragraph that is short, its blank line among them; 0 if it is long."""
    at = text.find(DOCUMENT_MARK, 0, LONGEST_OPENING + len(DOCUMENT_MARK))
    return at + len(DOCUMENT_MARK) if at > 0 else 0
