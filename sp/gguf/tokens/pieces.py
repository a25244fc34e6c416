"""Where a long text may be cut so that its parts, encoded side by side, give the tokens of the whole.

A pre-tokeniser cuts text by regular expressions without look-behind, and each of its pieces is encoded alone. In none
of `PRE_TOKENIZERS` can a match hold an ASCII letter or digit with a space behind it: letters and digits are matched by
classes of their own and by the contractions, which end with them, and excluded elsewhere. So a match always ends
between the two, whatever surrounds them. The left part keeps its matches, since what is greedy or looks ahead there
ends at the same place; the right part keeps its own, since it begins where one begins.
"""

from __future__ import annotations

import re
from itertools import pairwise

CUT = re.compile("(?<=[A-Za-z0-9]) ")
PIECE = 4096
"""Characters of a part: a millisecond of work."""


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
