"""Space: a prompt's tokens where a trained head compares them, gathered layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.models import Model
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.unrotate import unrotate
from sp.scoring.trained.scoring_head import ScoringHead
from sp.scoring.trained.units import Pool

STEP, WINDOW = 8, 64
"""Tokens from the start of a window to that of the next, and of a window."""
SLICE = 1 << 16
"""Tokens that are compared at once, whole steps: a bound on memory."""


@dataclass
class Space:
    """Tokens of a prompt in the space of a head, gathered layer by layer; only the sums over layers are held.

    `tokens`, `rows`: of the prompt, and its last ones that ask.
    """

    model: Model
    head: ScoringHead
    tokens: int
    rows: int
    positions: Any  # where the model is
    document: Any = None
    asking: Any = None
    gates: Any = field(default=0.0)
    weights: dict[tuple[str, int], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Place all weights before anything is read: a copy between launches would make the host wait."""
        xp, head = array_module(self.positions), self.head
        for name, part in (("query", head.query), ("key", head.key), ("gate", head.gate)):
            self.weights |= {(name, layer): xp.asarray(array) for layer, array in part.items()}

    def add(self, layer: int, q: Floats, at: PagedKV) -> None:
        """Take a layer's queries (rows, heads, d) of the last tokens, rotated, and all its keys and values."""
        xp, config = array_module(q), self.model.config
        if layer in self.head.query:
            flat = _flat(self.unrotated(q))
            found = flat @ self.weights["query", layer]
            self.asking = found if self.asking is None else self.asking + found
            self.gates = self.gates + flat @ self.weights["gate", layer]
        if layer in self.head.key:
            if self.document is None:
                self.document = xp.zeros((self.tokens, self.head.rank), np.float32)
            keys, values = xp.split(self.weights["key", layer], 2)
            k, v = replace(at, tokens=self.tokens).gather()
            k = unrotate(k, self.positions, config.rope)
            for first in range(0, self.tokens, SLICE):
                part = slice(first, first + SLICE)
                self.document[part] += _flat(k[part]) @ keys + _flat(v[part]) @ values

    def unrotated(self, q: Floats) -> Floats:
        """Queries (rows, heads, d) of the last tokens without rotary embedding; the ones given stay as they are."""
        return unrotate(q.copy(), self.positions[-self.rows :], self.model.config.rope)

    def of_units(self, bounds: Ints) -> Floats:
        """What each unit of tokens has, float32 (units,) from -1 to 1; waits for the device.

        Parameters
        ----------
        bounds : array (units + 1,)
            Ascending; no unit is longer than `SLICE`.
        """
        found, first = [], 0
        while first < len(bounds) - 1:
            last = max(int(np.searchsorted(bounds, bounds[first] + SLICE, "right")) - 1, first + 1)
            part = bounds[first : last + 1]
            alike = self._alike(int(part[0]), int(part[-1]))
            found.append(self._weights @ Pool.of(part - part[0], alike).largest(alike.T))
            first = last
        return self._on_host(found)

    def of_windows(self, tokens: int) -> Floats:
        """What the best of the windows has that hold a token, of the first so many; float32 (tokens,).

        Waits for the device.
        """
        xp, found = array_module(self.document), []
        for first in range(0, tokens, SLICE):
            alike = self._alike(first, min(first + SLICE, tokens))
            steps = xp.full((-(-len(alike) // STEP) * STEP, self.rows), -1, np.float32)
            steps[: len(alike)] = alike
            found.append(steps.reshape(-1, STEP, self.rows).max(axis=1))
        edge = xp.full((WINDOW // STEP - 1, self.rows), -1, np.float32)
        best = xp.concatenate([edge, *found, edge])  # at an edge windows hold fewer tokens
        span = 1
        while span < WINDOW // STEP:
            best = xp.maximum(best[:-span], best[span:])
            span *= 2
        windows = self._on_host([best @ self._weights])
        inside = np.lib.stride_tricks.sliding_window_view(windows, WINDOW // STEP)
        return np.repeat(inside.max(axis=1), STEP)[:tokens]

    def _alike(self, first: int, last: int) -> Any:
        """Cosines of tokens with asking tokens, float32 (last - first, rows)."""
        return _unit_length(self.document[first:last]) @ _unit_length(self.asking).T

    @property
    def _weights(self) -> Any:
        """Of asking tokens, (rows,)."""
        xp = array_module(self.document)
        weights = xp.exp(self.gates - self.gates.max())
        return weights / weights.sum()

    def _on_host(self, parts: list[Any]) -> Floats:
        found: Floats = np.asarray(on_host(array_module(self.document).concatenate(parts)), np.float32)
        return found


def _flat(rows: Any) -> Any:
    """Heads (n, heads, d) side by side as float32 (n, heads x d)."""
    return rows.reshape(len(rows), -1).astype(np.float32)


def _unit_length(rows: Any) -> Any:
    """Rows (n, rank) scaled to length one."""
    xp = array_module(rows)
    return rows / xp.sqrt((rows * rows).sum(axis=1, keepdims=True) + np.float32(1e-12))
