"""Where a long text may be cut so that its parts, encoded side by side, give the tokens of the whole.

A pre-tokeniser cuts text by a regular expression without look-behind, and each of its pieces is encoded alone. In none
of those in `CUTTABLE` can a match hold an ASCII letter or digit with a space behind it: letters and digits are matched
by ``\\p{L}+``, ``\\p{N}`` and the contractions, which end with them, and excluded elsewhere. So a match always
ends between the two, whatever surrounds them. The left part keeps its matches, since what is greedy or looks ahead
there ends at the same place; the right part keeps its own, since it begins where one begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

CUT = re.compile("(?<=[A-Za-z0-9]) ")
CUTTABLE = frozenset({"qwen2", "qwen35"})
"""Pre-tokenisers the argument above was made for."""
PIECE = 4096
"""Characters of a part: a millisecond of work."""


def may_cut(pre: str, added: Iterable[str]) -> bool:
    """Whether `pieces` is safe for a pre-tokeniser and the tokens that are found before it runs.

    Examples
    --------
    >>> may_cut("qwen2", ["<|im_end|>"]), may_cut("qwen2", ["two words"])
    (True, False)
    """
    return pre in CUTTABLE and not any(CUT.search(token) for token in added)


def pieces(text: str, size: int = PIECE) -> list[str]:
    """The text in parts of about `size` (at least 1) characters; longer where there is no safe place.

    Examples
    --------
    >>> pieces("one two  three, four", 4)
    ['one two', '  three, four']
    """
    cuts = [0]
    while (found := CUT.search(text, cuts[-1] + size)) is not None:
        cuts.append(found.start())
    cuts.append(len(text))
    return [text[start:end] for start, end in pairwise(cuts)]
