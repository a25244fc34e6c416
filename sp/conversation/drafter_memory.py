"""DrafterMemory: keys of the whole transcript from turn to turn, so that a turn drafts only what is new."""

from __future__ import annotations

import numpy as np

from sp.arrays import Ints
from sp.conversation.slots import same_start
from sp.models import ModelConfig, Trail
from sp.pipeline import Loaded
from sp.scoring import KeptKeys


class DrafterMemory:
    """What the drafter has read.

    Parameters
    ----------
    drafter : Loaded
    layers : ModelConfig
        Those whose keys are kept; see `Scorer.kept_layers`.
    kv : {"f16", "q4_0", "f32"}
    snapshots : int
        See `Trail`.
    """

    def __init__(self, drafter: Loaded, layers: ModelConfig, kv: str, snapshots: int) -> None:
        self._how = drafter, layers, kv, snapshots
        model = drafter.model
        self.trail = Trail(
            layers,
            kv,
            rotate=False,  # scorers hold queries against keys as they are stored
            device=model.device,
            snapshots=snapshots,
            math=model.arithmetic.attention,
        )
        self._ids: Ints = np.empty(0, np.int64)

    def keys(self, ids: Ints, ends: Ints) -> KeptKeys:
        """What is known of a prompt, for its scorer to go on from; all else is forgotten.

        Parameters
        ----------
        ids : int64 (n,)
        ends : int64
            Tokens at which messages end.
        """
        self.trail.back_to(same_start(self._ids[: self.trail.tokens], ids))
        self._ids = ids  # as far as the trail goes, whatever becomes of the reading
        return KeptKeys(self.trail, tuple(ends[-self._how[3] :].tolist()))

    def fork(self, ids: Ints) -> DrafterMemory:
        """Another memory with what this one holds of a prompt's beginning."""
        other = DrafterMemory(*self._how)
        other.trail = self.trail.fork(same_start(self._ids[: self.trail.tokens], ids))
        other._ids = ids
        return other
