"""How likely an answer is after a prompt of which parts are left out, many times over with one cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.models import Cache, Checkpoint, Hooks, Model, prefill
from sp.ops.array_module import array_module, on_host

Done = Callable[[float], None]
"""Takes the share of the work that is done so far, 1 at the end."""


def log_likelihoods(
    model: Model,
    ids: Ints,
    positions: Ints,
    answer: Ints,
    left_out: Sequence[Bools],
    done: Done | None = None,
) -> Floats:
    """Log-probability of an answer, in nats, after a prompt without some of its tokens, and after all of it.

    What stands before the tokens left out is read once and for all, also by layers that remember in a state; what
    follows them is read anew each time, at the positions it has.

    Parameters
    ----------
    model : Model
    ids, positions : int64 (n,)
        The prompt; the answer goes on from its last position.
    answer : int64 (m,)
        At least one token.
    left_out : sequence of boolean arrays (n,)
        By trial, the tokens to leave out: at least one, never the last, and the first of them no earlier than that of
        the trial before.
    done : callable, optional

    Returns
    -------
    float64 (trials + 1,)
        The last one after the whole prompt.

    Raises
    ------
    PromptError
        See `prefill`.

    Examples
    --------
    >>> from sp.session.load import embedded, load
    >>> model = load(embedded("drafter"), device="cpu").model
    >>> ids, first = np.arange(100, 140), np.arange(40) < 8
    >>> log_likelihoods(model, ids, np.arange(40), np.array([7]), [first]).shape
    (2,)
    """
    n = len(ids)
    starts = [int(each.argmax()) for each in left_out]
    assert starts == sorted(starts), f"trials begin at {starts}, not in the order of the prompt"
    nothing = np.zeros(n, bool)
    trials = list(zip([*starts, max(starts, default=0)], [*left_out, nothing], strict=True))
    work = trials[-1][0] + sum(n - start - int(missing.sum()) for start, missing in trials)
    cache, found, read = model.new_cache(n + len(answer)), [], 0
    for start, missing in trials:
        before = cache.tokens
        if start > before:
            prefill(model, ids[before:start], positions[before:start], cache)
        here, rest = Checkpoint.of(cache), start + np.flatnonzero(~missing[start:])
        found.append(_log_likelihood(model, ids[rest], positions[rest], answer, cache))
        here.restore(cache)
        read += start - before + len(rest)
        if done is not None:
            done(read / work)
    return np.array(found)


def _log_likelihood(model: Model, ids: Ints, positions: Ints, answer: Ints, cache: Cache) -> float:
    """Log-probability of `answer` (m,) behind the cached tokens and these (n,), in one pass over both."""
    m, top, rows = len(answer), model.config.layers - 1, list[Floats]()

    def after(layer: int, x: Floats) -> None:
        if layer == top and len(x):
            rows.append(x.copy())  # the next chunk of a long prompt may be written over it

    ids = np.concatenate([ids, answer[:-1]])
    positions = np.concatenate([positions, positions[-1] + np.arange(1, m)])
    prefill(model, ids, positions, cache, rows=m, hooks=Hooks(after_layer=after))
    logits = on_host(model.head(array_module(rows[0]).concatenate(rows))).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return float((logits[np.arange(m), answer] - np.log(np.exp(logits).sum(axis=1))).sum())
