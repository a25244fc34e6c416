"""A text as the tokens of a vocabulary spell it, which may differ from the text itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Ints


@dataclass(frozen=True)
class Written:
    """What is encoded, and where each byte of the text stands in it.

    `texts`: the parts between special tokens; `spelled`: all of it, special tokens included; `begins`, int64 array
    (n,), optional: where each byte of the text begins in `spelled`; left out where the two are the same.
    """

    texts: list[str]
    spelled: bytes
    begins: Ints | None = None

    def text_ends(self, ends: Ints) -> Ints:
        """Bytes of the text that begin before each place in `spelled`: a character written with several bytes goes
        to the token that has its first.

        >>> Written(["\u2581a\u2581b"], "\u2581a\u2581b".encode(), np.array([3, 4, 7])).text_ends(np.array([3, 4, 8]))
        array([0, 1, 3])
        """
        return ends if self.begins is None else np.searchsorted(self.begins, ends, side="left")

    def text_places(self, places: Ints) -> Ints:
        """The byte of the text that each of some places in `spelled` belongs to, each byte once.

        >>> Written(["\u2581a\u2581b"], "\u2581a\u2581b".encode(), np.array([3, 4, 7])).text_places(np.array([3, 4, 5]))
        array([0, 1])
        """
        if self.begins is None:
            return places
        return np.unique(np.maximum(np.searchsorted(self.begins, places, side="right") - 1, 0))
