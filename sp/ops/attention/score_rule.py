"""ScoreRule: a layer's deviations from plain softmax attention; read by every attention op."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.sequence import WINDOW_REACH
from sp.ops.array_module import array_module
from sp.ops.attention.kv_pages import split_count


@dataclass(frozen=True)
class ScoreRule:
    """The rule by which scores of queries and keys become weights.

    ``s = scale q · k``, then ``s = softcap tanh(s / softcap)``; weights of a query are ``exp(s_j)`` divided by the sum
    of these and of ``exp(sink)`` of its head. Of the keys before it a query sees those from `reach` on, or the last
    `window` ones, including itself.

    Attributes
    ----------
    scale : float, optional
        ``1 / sqrt(d)`` by default.
    softcap : float, optional
        Bound of the scores. Source: Gemma Team, "Gemma 2", arXiv 2408.00118.
    sinks : float32 (heads,), optional
        A logit per query head that belongs to no value; on the device of the queries. Source: OpenAI, "gpt-oss-120b &
        gpt-oss-20b Model Card", arXiv 2508.10925.
    window : int, optional
        All keys are seen by default.
    reach : int32 (n,), optional
        The first key that each query sees, ascending: see `window_reach`; on the device of the queries. By default a
        window counts tokens, whatever their positions.
    """

    scale: float | None = None
    softcap: float | None = None
    sinks: Any = None
    window: int | None = None
    reach: Any = None

    def first_seen(self, n: int, tokens: int, like: Any) -> Any:
        """Return the first key that each of the last `n` of so many tokens sees in a window: int32 (n,), on the device
        of `like`."""
        if self.reach is not None:
            return self.reach
        assert self.window is not None, "no window"
        xp = array_module(like)
        return xp.maximum(xp.arange(tokens - n, tokens) - (self.window - 1), 0).astype(np.int32)

    def of_run(self, run: slice) -> ScoreRule:
        """Return the rule for a slice of the queries."""
        return self if self.reach is None else replace(self, reach=self.reach[run])

    def of_heads(self, heads: slice) -> ScoreRule:
        """Return the rule for some of the heads that have sinks."""
        return replace(self, sinks=self.sinks[heads])

    @cached_property
    def fits_bytes(self) -> bool:
        """True if 8-bit attention supports the rule: it supports windows and scales."""
        return self.softcap is None and self.sinks is None

    def defines(self, *names: str) -> dict[str, int]:
        """Return the defines among ``WINDOW``, ``SINKS`` and ``SOFTCAP`` that this rule needs; `names`: those that the
        kernel knows."""
        asked = {"WINDOW": self.window, "SINKS": self.sinks is not None, "SOFTCAP": self.softcap}
        return {name: 1 for name in names if asked[name]}

    @property
    def cap(self) -> float:
        """The softcap in base 2, for kernels; 0 without one."""
        return 0.0 if self.softcap is None else self.softcap * float(np.log2(np.e))


PLAIN = ScoreRule()


def soft_capped(scores: Floats, cap: float) -> Floats:
    """``cap tanh(scores / cap)`` in place.

    >>> soft_capped(np.array([0.0, 1000.0], np.float32), 50.0).tolist()
    [0.0, 50.0]
    """
    scores *= scores.dtype.type(1 / cap)
    np.tanh(scores, out=scores)
    scores *= scores.dtype.type(cap)
    return scores


def window_reach(positions: Ints, places: Ints, count: Any, window: int, *, tree: bool = False) -> Ints:
    """Return the first key that each of the last tokens of a sequence sees: a key is visible if its position is less
    than `window` before the token's own. In a compressed prompt, a window of so many selected tokens would span
    distances that no layer with windows has learnt. Returns int32 (n,), on the device of `positions`.

    Parameters
    ----------
    positions : int64 (n,)
        Positions of the last n tokens, ascending; of a tree the root's comes first.
    places : int64 (count or more,)
        Positions of all tokens; those of the last n are stored, for later calls. A tree is stored as a chain, which its
        accepted path will be.
    count : int, or on the device int32 (1,)
        Number of tokens, including the last n.
    tree : bool
        True if the tokens are a tree: keys among them are ignored.

    Examples
    --------
    >>> places = np.array([0, 1, 2, 90, 91, 0])
    >>> window_reach(np.array([93]), places, 6, 4).tolist(), places.tolist()
    ([3], [0, 1, 2, 90, 91, 93])
    """
    n = len(positions)
    if is_device(positions):
        reach: Ints = import_cupy().empty(n, np.int32)
        WINDOW_REACH.launch((-(-n // 128),), positions, places, *split_count(count), n, window, int(tree), reach)
        return reach
    start = count - n
    places[start:count] = positions[0] + np.arange(n) if tree else positions
    found: Ints = np.searchsorted(places[: start if tree else count], positions - window, side="right").astype(np.int32)
    return found
