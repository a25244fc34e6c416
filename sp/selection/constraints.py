"""What is kept whatever the scores say: protected text first, then the two ends of the prompt."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bools
from sp.errors import PromptError


def check_budget(protected: Bools, budget: int) -> None:
    """PromptError if the protected tokens alone exceed the budget; callers ask before they score."""
    n, needed = len(protected), int(protected.sum())
    if needed > budget:
        raise PromptError(
            f"the protected text (question and chat markup) is {needed} of {n} tokens, but the keep ratio "
            f"allows {budget}; raise --keep-ratio to at least {np.ceil(1000 * needed / n) / 1000:g}"
        )


def forced_tokens(protected: Bools, budget: int, sink: int, tail: int) -> Bools:
    """Tokens that must be kept: all protected ones, and sink and tail as far as the budget is not theirs alone.

    Attention sinks sit on the first tokens (StreamingLLM, arXiv 2309.17453) and losing the end of the prompt
    breaks the answer, so both are kept. They may take at most half of what protected text leaves, or the
    scores would never be asked at small keep ratios.

    Parameters
    ----------
    protected : boolean array (n,)
    budget : int
        Tokens that may be kept in all.
    sink, tail : int
        Tokens wanted from the start and from the end of the prompt.

    Returns
    -------
    boolean array (n,)

    Raises
    ------
    PromptError
        If the protected tokens alone exceed the budget.

    Examples
    --------
    >>> forced_tokens(np.zeros(10, bool), budget=4, sink=8, tail=1).nonzero()[0].tolist()
    [0, 9]
    """
    check_budget(protected, budget)
    n, needed = len(protected), int(protected.sum())
    free = (budget - needed) // 2
    # Both ends grow inward in step, so that a larger budget keeps all that a smaller one keeps.
    order = np.full(n, np.inf)
    order[n - min(tail, n) :] = np.arange(min(tail, n))[::-1] / max(tail, 1)
    order[: min(sink, n)] = np.minimum(order[: min(sink, n)], np.arange(min(sink, n)) / max(sink, 1))
    order[protected] = np.inf
    forced = protected.copy()
    forced[np.argsort(order, kind="stable")[: min(free, int(np.isfinite(order).sum()))]] = True
    return forced
