"""What a drafter was trained for, told under every table in which scorers are ranked by it.

A file says so itself, under the key ``sp.trained_for``; the drafter of the needle pair, which is older than the key, is
known by its name. Records of sweeps keep what the file said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sp import values
from sp.errors import GGUFError, plain
from sp.gguf import GGUFFile
from sp.session import embedded

KEY = "sp.trained_for"  # key of a file's metadata: one or two sentences that go on from `BEGINS`
LONGEST = 800  # characters of a note
BEGINS = "What was trained for what, as the drafter's file says: "
TRAINED_FOR = (
    "What was trained for what: heads 0 and 2 of the last layer of the needle pair's drafter were supervised on the "
    "very queries that `tail` reads, the last tokens of a prompt, and on the answer's tokens, which `lookahead` adds; "
    "scorers that read other queries, other layers or no model had no such help."
)  # of the needle pair: the pointer loss of its card, ``results/nvidia-h200/needle_pair/MODEL_CARD.md``
NEEDLE_PAIR = "needle-pair-drafter"  # ``general.name`` of the needle pair's drafter
NEEDLE_PAIR_SHA256 = "e51a51005b9b88a13045269838f42b036173ff999c607bd3713d8320f429ad4e"
"""For records that were written before they kept what a file says."""
MARKUP = str.maketrans("<>[]|\\", "()()//")


def note_of_metadata(metadata: Mapping[str, Any]) -> str:
    """What is told of a ranking by the drafter with this metadata: nothing, unless it says what it was trained for. The
    text is a stranger's: one line of at most `LONGEST` characters, without what a terminal or a page would obey."""
    said = values.text(metadata.get(KEY))
    if said is not None and said.strip():
        return one_line(f"{BEGINS}{said}")
    return TRAINED_FOR if values.text(metadata.get("general.name")) == NEEDLE_PAIR else ""


def note_of_file(drafter: Path) -> str:
    """The same of the drafter in a file; nothing of a file that cannot be read."""
    try:
        with GGUFFile.open(drafter) as file:
            return note_of_metadata(file.metadata)
    except GGUFError:
        return ""


def note_of_records(drafters: Iterable[Mapping[str, Any]]) -> str:
    """The same of rankings by drafters as records of sweeps describe them; where there is none, the note says so.
    `drafters`: ``sha256`` and, where the file said it, ``trained_for``: a note of `note_of_file`."""
    known = list(drafters)
    if not known:
        ours = _note_of_embedded()
        return f"If the drafter was the embedded one: {ours}" if ours else ""
    notes = []
    for each in known:
        said, old = each.get("trained_for"), each.get("sha256") == NEEDLE_PAIR_SHA256
        notes.append(one_line(said) if isinstance(said, str) else TRAINED_FOR if old else "")
    return " ".join(dict.fromkeys(filter(None, notes)))


def one_line(text: str) -> str:
    r"""A stranger's text as one bounded line without what a terminal or a page would obey.

    >>> one_line("two\nlines,  <b>loud</b>")
    'two lines, (b)loud(/b)'
    """
    return plain(text, LONGEST).translate(MARKUP)


@cache
def _note_of_embedded() -> str:
    return note_of_file(embedded("drafter"))
