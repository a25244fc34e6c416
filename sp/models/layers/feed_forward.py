"""SwiGLU: the gated feed-forward of dense models."""

from __future__ import annotations

from dataclasses import dataclass

from sp.arrays import Floats
from sp.models.layers.share import Share
from sp.models.weights import Store
from sp.ops.matmul.project import gated_project, project_add, project_add_before
from sp.ops.norms import Norm, Ready
from sp.quant import Weight


@dataclass(frozen=True)
class SwiGLU:
    """``down(silu(gate(h)) * up(h))`` of a normed token h; see `FeedForward`.

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020.
    """

    gate: Weight
    up: Weight
    down: Weight

    @classmethod
    def take(cls, store: Store, index: int) -> SwiGLU:
        """Build that of block `index`."""
        hidden, width, blk = store.config.hidden, store.config.ffn[index], f"blk.{index}."
        return cls(
            gate=store.matrix(f"{blk}ffn_gate.weight", (width, hidden)),
            up=store.matrix(f"{blk}ffn_up.weight", (width, hidden)),
            down=store.matrix(f"{blk}ffn_down.weight", (hidden, width)),
        )

    def cut(self, share: Share) -> SwiGLU:
        """See `Shareable`: columns of the hidden layer."""
        return SwiGLU(share.rows(self.gate), share.rows(self.up), share.columns(self.down))

    def __call__(self, x: Floats, norm: Norm) -> Floats:
        """See `FeedForward`."""
        return project_add(x, self._gated(x, norm), self.down)

    def add_before(self, x: Floats, norm: Norm | Ready, then: Norm) -> tuple[Floats, Norm | Ready]:
        """See `FeedForward`."""
        return project_add_before(x, self._gated(x, norm), self.down, then, norm)

    def _gated(self, x: Floats, norm: Norm | Ready) -> Floats:
        return gated_project(x, self.gate, self.up, norm, reader=self.down)
