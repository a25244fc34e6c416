"""Bytes that a vocabulary has no token for: they are dropped, as by llama.cpp, and where they stood is known."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bools, Bytes, Ints


def spelled_places(wanted: Bytes, spelled: Bytes, lacking: Bools) -> Ints | None:
    """Where in a text each byte stands that its tokens spell; None if they spell something else.

    Parameters
    ----------
    wanted : uint8 (n,)
        The text.
    spelled : uint8 (m,)
        The bytes of its tokens, end to end.
    lacking : bool (256,)
        Bytes without a token of their own. They alone may be absent from `spelled`, and may be there all the same, in
        a longer token.

    Returns
    -------
    int64 (m,) or None
        Ascending.

    Examples
    --------
    >>> lacking = np.arange(256) < 32
    >>> spelled_places(*(np.frombuffer(one, np.uint8) for one in (b"a\\x04b\\x05", b"ab")), lacking)
    array([0, 2])
    """
    places = np.flatnonzero(~lacking[wanted])
    if len(places) == len(spelled) and np.array_equal(wanted[places], spelled):
        return places
    found, left = list[int](), spelled.tolist()
    for place, (byte, may_lack) in enumerate(zip(wanted.tolist(), lacking[wanted].tolist(), strict=True)):
        if len(found) < len(left) and left[len(found)] == byte:
            found.append(place)
        elif not may_lack:
            return None
    return np.array(found, np.int64) if len(found) == len(left) else None
