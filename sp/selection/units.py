"""What a rule compares: tokens, chunks of equal length, or sentences; always ranges that tile the prompt."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.errors import ConfigError
from sp.prompt import sentences
from sp.selection.base import SelectionRequest


def sentence_bounds(request: SelectionRequest, longest: int) -> Ints:
    """Bounds of sentences in tokens, see `sp.prompt.sentences`; ConfigError where the text is not known.

    Examples
    --------
    >>> spans = np.array([[0, 3], [3, 4], [4, 8], [8, 9]])
    >>> request = SelectionRequest(np.zeros(4, np.float32), np.zeros(4, bool), 0.5, b"One. Two.", spans)
    >>> sentence_bounds(request, 64).tolist()
    [0, 2, 4]
    """
    if request.spans is None:
        raise ConfigError("selector sentence needs the text of the prompt and the bytes of its tokens")
    return sentences.sentence_bounds(request.text, request.spans, longest)


def unit_means(scores: Floats, bounds: Ints, counted: Bools | None = None) -> Floats:
    """Mean score of each unit over its `counted` tokens (all, if left out); NaN where none counts.

    Examples
    --------
    >>> unit_means(np.array([1, 3, 5], np.float32), np.array([0, 2, 3])).tolist()
    [2.0, 5.0]
    """
    if counted is None:
        counted = np.ones(len(scores), bool)
    sums = np.add.reduceat(np.where(counted, scores, np.float32(0)), bounds[:-1])
    counts = np.add.reduceat(counted.astype(np.int64), bounds[:-1])
    means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return np.asarray(means, np.float32)


def best_first(scores: Floats) -> Ints:
    """Units that were compared, by falling score; earlier ones first among equals.

    Examples
    --------
    >>> best_first(np.array([1, np.nan, 3, 1], np.float32)).tolist()
    [2, 0, 3]
    """
    order = np.argsort(-scores, kind="stable")
    return order[~np.isnan(scores[order])]
