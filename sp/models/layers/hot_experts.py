"""Hot experts: those of a layer that its prompt chose most, and how often decoding chooses them again."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.ops.array_module import array_module


def count_choices(counts: Any, experts: Any, one: Any) -> None:
    """Add to `counts` how often each expert was chosen; on the device nothing waits, and a CUDA graph can capture it.

    Parameters
    ----------
    counts : uint32 (count,)
        Changed in place.
    experts : int32 (tokens, used)
        See `Routing`.
    one : uint32 (1,)
        That number, where `counts` are: a graph could not send it from the host anew.

    Examples
    --------
    >>> import numpy as np
    >>> counts, one = np.zeros(4, np.uint32), np.ones(1, np.uint32)
    >>> count_choices(counts, np.array([[2, 0], [2, 3]], np.int32), one)
    >>> counts.tolist()
    [1, 0, 2, 1]
    """
    if experts.size:
        array_module(counts).add.at(counts, experts.reshape(-1), one)


def hottest(counts: Ints, most: int) -> Ints:
    """The experts that were chosen most, `most` of them at most, ascending; int64, of equals the smaller index.

    >>> import numpy as np
    >>> hottest(np.array([5, 0, 7, 5]), 2).tolist()
    [0, 2]
    """
    found: Ints = np.sort(np.argsort(-counts.astype(np.int64), kind="stable")[:most])
    return found


def hit_rate(prompt: Ints, decoded: Ints, share: float) -> float:
    """Share of the choices while decoding that fall on experts the prompt made hot, over all layers.

    Parameters
    ----------
    prompt, decoded : int (layers, count)
        How often each expert was chosen by the tokens of the prompt and by those after it.
    share : float
        Of a layer's experts that are hot.

    Returns
    -------
    float
        NaN where nothing was decoded.

    Examples
    --------
    >>> import numpy as np
    >>> hit_rate(np.array([[9, 1, 0, 4]]), np.array([[3, 2, 1, 2]]), 0.5)
    0.625
    """
    most, total = int(share * prompt.shape[1]), int(decoded.sum())
    hits = sum(int(after[hottest(before, most)].sum()) for before, after in zip(prompt, decoded, strict=True))
    return hits / total if total else float("nan")
