"""Attention: the mixer of every layer that keeps keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sp.arrays import Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.models.layers.block import Nodes, Tap
from sp.models.layers.share import Share
from sp.models.weights import Store, split_rows
from sp.ops.add_bias import add_bias
from sp.ops.attention.head_norm_rope import HeadNorms, head_norm_rope
from sp.ops.delta.delta_tree import DeltaTrace
from sp.ops.matmul.project import project, project_add, project_add_before
from sp.ops.norms import Norm, Ready
from sp.quant import Weight


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention with RoPE; what a family may have besides is told by what is there.

    Attributes
    ----------
    index : int
    config : ModelConfig
        If it is `gated`, a sigmoid gate lies on the output and its rows beside those of q.
    q, k, v, out : Weight
    biases : tuple of float32, optional
        Of q, k and v, added before anything else.
    norms : HeadNorms
        Of q and k before RoPE, if there are any.
    """

    index: int
    config: ModelConfig
    q: Weight
    k: Weight
    v: Weight
    biases: tuple[Floats, ...] | None
    norms: HeadNorms
    out: Weight

    @classmethod
    def take(cls, store: Store, index: int, *, norms: bool = True, biases: bool = False) -> Attention:
        """Build from split q, k, v tensors or from a fused attn_qkv, whose rows are q | k | v.

        `norms` and `biases` say whether the family has norms of q and k, and biases of q, k and v.
        """
        config = store.config
        blk, hidden, d = f"blk.{index}.", config.hidden, config.head_dim
        q_rows = config.heads * d * (2 if config.gated else 1)
        kv_rows = config.kv_heads * d
        if f"{blk}attn_qkv.weight" in store:
            fused = store.matrix(f"{blk}attn_qkv.weight", (q_rows + 2 * kv_rows, hidden))
            q, k, v = split_rows(fused, [q_rows, kv_rows, kv_rows])
        else:
            q = store.matrix(f"{blk}attn_q.weight", (q_rows, hidden))
            k = store.matrix(f"{blk}attn_k.weight", (kv_rows, hidden))
            v = store.matrix(f"{blk}attn_v.weight", (kv_rows, hidden))
        out = store.matrix(f"{blk}attn_output.weight", (hidden, config.heads * d))
        added, normed = None, HeadNorms()
        if biases:
            sizes = {"q": q_rows, "k": kv_rows, "v": kv_rows}
            added = tuple(store.vector(f"{blk}attn_{part}.bias", size) for part, size in sizes.items())
        if norms:
            q_norm, k_norm = (store.vector(f"{blk}attn_{part}_norm.weight", d) for part in "qk")
            normed = HeadNorms(q_norm, k_norm, config.eps)
        return cls(index, config, q, k, v, added, normed, out)

    def cut(self, share: Share) -> Attention:
        """See `Shareable`: kv heads with the heads that read them."""
        return replace(
            self,
            config=share.config(self.config),
            q=share.rows(self.q),
            k=share.rows(self.k),
            v=share.rows(self.v),
            biases=None if self.biases is None else tuple(share.values(bias) for bias in self.biases),
            out=share.columns(self.out),
        )

    def __call__(self, x: Floats, norm: Norm, positions: Ints, cache: Cache, rows: int, tap: Tap | None) -> Floats:
        """See `Mixer`."""
        q, gate = self.enter(x, norm, positions, cache, rows, tap)
        last = x[len(x) - rows :]
        return self.leave(last, cache.attend(self.index, q, gate)) if rows else last

    def read_tree(
        self, x: Floats, norm: Norm | Ready, nodes: Nodes, cache: Cache, trace: DeltaTrace | None, then: Norm
    ) -> tuple[Floats, Norm | Ready]:
        """See `Mixer`; keys and values of all nodes are stored."""
        q, gate = self.enter(x, norm, nodes.positions, cache, len(x))
        return project_add_before(
            x, cache.attend_tree(self.index, q, nodes.seen, gate=gate, reader=self.out), self.out, then, norm
        )

    def enter(
        self,
        x: Floats,
        norm: Norm | Ready,
        positions: Ints,
        cache: Cache,
        rows: int,
        tap: Tap | None = None,
        out: Floats | None = None,
    ) -> tuple[Floats, Floats | None]:
        """All that comes before attention: keys and values of the n tokens are stored.

        Returns
        -------
        q : float32 (rows, heads, head_dim), on the device float16
            Queries of the last `rows`; in `out` if that is given, all rows are asked for and no tap looks on.
        gate : float32 (rows, heads, 2 head_dim), on the device bf16, optional
            As `Cache.attend` takes it.
        """
        c, n = self.config, len(x)
        rotary = cache.config.rope  # not that of the weights: a reading may scale it, and all its keys alike
        # A gated q weight holds, head by head, head_dim query rows and then head_dim gate rows.
        wide, k, v = self._projected(x, norm, rows)
        wide = wide.reshape(rows, c.heads, self.q.shape[0] // c.heads)
        k, v = k.reshape(n, c.kv_heads, c.head_dim), v.reshape(n, c.kv_heads, c.head_dim)
        gate = wide if c.gated else None
        if rows == n and tap is None:
            return cache.append_heads(self.index, wide, k, v, self.norms, positions, out), gate
        k = head_norm_rope(k, c.head_dim, self.norms.k, self.norms.eps, positions, rotary)
        cache.append(self.index, k, v)
        q = head_norm_rope(wide, c.head_dim, self.norms.q, self.norms.eps, positions[n - rows :], rotary)
        if tap is not None:
            tap(self.index, q, k, positions)
        return q, gate

    def _projected(self, x: Floats, norm: Norm | Ready, rows: int) -> tuple[Floats, ...]:
        """q of the last `rows` tokens, k and v of all; on the device bf16. A bias is added before that rounding."""
        f32 = None if self.biases is None else (True, True, True)
        if rows == len(x):
            found = project(x, (self.q, self.k, self.v), norm, f32)
        else:
            last = x[len(x) - rows :]
            found = (
                *project(last, (self.q,), norm, f32 and f32[:1]),
                *project(x, (self.k, self.v), norm, f32 and f32[1:]),
            )
        return found if self.biases is None else add_bias(found, self.biases)

    def leave(self, x: Floats, attended: Floats) -> Floats:
        """All that comes after attention: its output (rows, heads * head_dim), added to the stream (rows, hidden)."""
        return project_add(x, attended, self.out)
