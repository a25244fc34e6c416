"""DrafterMemory: keys of the whole transcript from turn to turn, so that a turn drafts only what is new."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sp.arrays import Ints
from sp.conversation.slots import same_start
from sp.models import ModelConfig, Trail
from sp.ops.rope import Rope
from sp.pipeline import Loaded
from sp.scoring import KeptKeys


class DrafterMemory:
    """What the drafter has read.

    Keys are kept as RoPE has turned them. Where a transcript grows beyond the window, or is cut back to it, RoPE is
    another one (`Loaded.for_prompt`), and all is read again, so that scores are those of a first reading. Factors
    double, so that while a transcript grows this adds up to less than two readings of its whole length.

    Parameters
    ----------
    drafter : Loaded
    layers : ModelConfig
        Those whose keys are kept; see `Scorer.kept_layers`.
    kv : {"f16", "q4_0", "f32"}
    snapshots : int
        See `Trail`.

    Attributes
    ----------
    trail : Trail
        The keys; another one where RoPE is another.
    """

    def __init__(self, drafter: Loaded, layers: ModelConfig, kv: str, snapshots: int) -> None:
        self._how = drafter, layers, kv, snapshots
        self.trail = self._empty(drafter.model.config.rope)
        self._ids: Ints = np.empty(0, np.int64)
        self._forgotten: str | None = None

    def keys(self, ids: Ints, ends: Ints) -> KeptKeys:
        """What is known of a prompt, for its scorer to go on from; all else is forgotten.

        Parameters
        ----------
        ids : int64 (n,)
        ends : int64
            Tokens at which messages end.
        """
        rotary, known = self._rope(len(ids)), self.trail.tokens
        self._forgotten = None
        if rotary != self.trail.config.rope:
            if known:
                self._forgotten = f"drafter: {known:,} tokens of earlier turns are read again, as RoPE is scaled anew"
            self.trail.clear()
            self.trail = self._empty(rotary)
        self.trail.back_to(same_start(self._ids[: self.trail.tokens], ids))
        self._ids = ids  # as far as the trail goes, whatever becomes of the reading
        return KeptKeys(self.trail, tuple(ends[-self._how[3] :].tolist()))

    @property
    def forgotten(self) -> tuple[str, ...]:
        """What the report says of keys that the last prompt could not go on from; nothing where it could."""
        return (self._forgotten,) if self._forgotten else ()

    def fork(self, ids: Ints) -> DrafterMemory:
        """Another memory with what this one holds of a prompt's beginning, as far as the prompt can go on from it."""
        other = DrafterMemory(*self._how)
        if self._rope(len(ids)) == self.trail.config.rope:
            other.trail = self.trail.fork(same_start(self._ids[: self.trail.tokens], ids))
        other._ids = ids
        return other

    def _rope(self, tokens: int) -> Rope:
        """That of a prompt of so many tokens."""
        return self._how[0].for_prompt(tokens).model.config.rope

    def _empty(self, rotary: Rope) -> Trail:
        drafter, layers, kv, snapshots = self._how
        device, math = drafter.model.device, drafter.model.arithmetic.attention
        # Not rotated by a Hadamard matrix: scorers hold queries against keys as they are stored.
        return Trail(replace(layers, rope=rotary), kv, rotate=False, device=device, snapshots=snapshots, math=math)
