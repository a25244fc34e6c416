"""Notes on the training of a drafter, which every table that ranks scorers with it prints below.

The note is in the drafter's file, under the key ``sp.trained_for``; the drafter of the archived needle pair, which is
older than the key, is recognised by its name. Records of sweeps have the note of the file.
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

KEY = "sp.trained_for"  # key of a file's metadata: one or two sentences that continue `BEGINS`
LONGEST = 800  # characters of a note
BEGINS = "What was trained for what, as the drafter's file says: "
TRAINED_FOR = (
    "What was trained for what: heads 0 and 2 of the last layer of the needle pair's drafter were supervised on the "
    "very queries that `tail` reads, the last tokens of a prompt, and on the answer's tokens, which `lookahead` adds; "
    "scorers that read other queries, other layers or no model had no such help."
)  # for the archived needle pair: the pointer loss in ``results/nvidia-h200/needle_pair/MODEL_CARD.md``
NEEDLE_PAIR = "needle-pair-drafter"  # ``general.name`` of the needle pair's drafter
NEEDLE_PAIR_SHA256 = "e51a51005b9b88a13045269838f42b036173ff999c607bd3713d8320f429ad4e"
"""Hash of that drafter's file, for records from before they had the note of a file."""
MARKUP = str.maketrans("<>[]|\\", "()()//")


def note_of_metadata(metadata: Mapping[str, Any]) -> str:
    """Return the note on a drafter from its metadata; empty if there is none.

    The text is not trusted: it is cut to one line of at most `LONGEST` characters, without control sequences or markup.
    """
    note = values.text(metadata.get(KEY))
    if note is not None and note.strip():
        return one_line(f"{BEGINS}{note}")
    return TRAINED_FOR if values.text(metadata.get("general.name")) == NEEDLE_PAIR else ""


def note_of_file(drafter: Path) -> str:
    """Return the note on the drafter in a file; empty if the file cannot be read."""
    try:
        with GGUFFile.open(drafter) as file:
            return note_of_metadata(file.metadata)
    except GGUFError:
        return ""


def note_of_records(drafters: Iterable[Mapping[str, Any]]) -> str:
    """Return the notes on drafters from records of sweeps.

    Each record has the ``sha256`` of the drafter's file and may have ``trained_for``, the note of `note_of_file`.
    Without any record, the note on the embedded drafter is returned as a possibility.
    """
    known = list(drafters)
    if not known:
        ours = _note_of_embedded()
        return f"If the drafter was the embedded one: {ours}" if ours else ""
    notes = []
    for drafter in known:
        note, old = drafter.get("trained_for"), drafter.get("sha256") == NEEDLE_PAIR_SHA256
        notes.append(one_line(note) if isinstance(note, str) else TRAINED_FOR if old else "")
    return " ".join(dict.fromkeys(filter(None, notes)))


def one_line(text: str) -> str:
    r"""Return an untrusted text as one line of bounded length, without control sequences and markup.

    >>> one_line("two\nlines,  <b>loud</b>")
    'two lines, (b)loud(/b)'
    """
    return plain(text, LONGEST).translate(MARKUP)


@cache
def _note_of_embedded() -> str:
    return note_of_file(embedded("drafter"))
