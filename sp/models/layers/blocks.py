"""Block and Attention: the parts both architectures share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sp.arrays import Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.models.weights import Store, split_rows
from sp.ops.attention.head_norm_rope import HeadNorms, head_norm_rope
from sp.ops.delta.delta_tree import DeltaTrace
from sp.ops.matmul.project import gated_project, project, project_add, project_add_before
from sp.ops.norms import Norm, Ready
from sp.quant import Weight

Tap = Callable[[int, Floats, Floats, Ints], None]
"""Sees every attention layer at work: (layer, q (rows, heads, d), k (n, kv_heads, d), positions (n,)).

q and k are after RoPE and before any cache rotation; q belongs to the last `rows` of the n positions.
"""


@dataclass(frozen=True)
class Nodes:
    """A tree of tokens that goes on from what a cache holds, in arrays where the model is.

    Attributes
    ----------
    ids : int64 (nodes,), on the device int32
    positions : int64 (nodes,)
        Where RoPE puts them.
    seen : uint64 (nodes,)
        Bit j of word i: node i sees node j, which is itself or an ancestor; ancestors come first.
    """

    ids: Ints
    positions: Ints
    seen: Any


class Mixer(Protocol):
    """The half of a block where tokens meet: attention or a recurrence."""

    def __call__(self, x: Floats, norm: Norm, positions: Ints, cache: Cache, rows: int, tap: Tap | None) -> Floats:
        """Residual stream (n, hidden) -> the stream (rows, hidden) of the last `rows` tokens; memory takes all n."""
        ...

    def read_tree(
        self, x: Floats, norm: Norm | Ready, nodes: Nodes, cache: Cache, trace: DeltaTrace | None, then: Norm
    ) -> tuple[Floats, Norm | Ready]:
        """The stream (nodes, hidden) of a tree; a recurrent memory stays, and `trace` takes what moves it on.

        `norm` and `then` are the norms before this half of a block and before the next one, which is begun here if it
        can be: see `project_add_before`.
        """
        ...


@dataclass(frozen=True)
class Block:
    """A transformer block: ``x += mixer(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x)))``.

    On the device the residual stream given is overwritten by the one returned; on the CPU it is left alone.
    """

    attn_norm: Floats
    mixer: Mixer
    ffn_norm: Floats
    ffn_gate: Weight
    ffn_up: Weight
    ffn_down: Weight
    eps: float

    @classmethod
    def take(cls, store: Store, index: int, mixer: Mixer, ffn_norm: str) -> Block:
        """Build block `index` around its mixer; `ffn_norm` is what the architecture calls that tensor."""
        hidden, ffn = store.config.hidden, store.config.ffn[index]
        blk = f"blk.{index}."
        return cls(
            attn_norm=store.vector(f"{blk}attn_norm.weight", hidden),
            mixer=mixer,
            ffn_norm=store.vector(f"{blk}{ffn_norm}.weight", hidden),
            ffn_gate=store.matrix(f"{blk}ffn_gate.weight", (ffn, hidden)),
            ffn_up=store.matrix(f"{blk}ffn_up.weight", (ffn, hidden)),
            ffn_down=store.matrix(f"{blk}ffn_down.weight", (hidden, ffn)),
            eps=store.config.eps,
        )

    def __call__(self, x: Floats, positions: Ints, cache: Cache, rows: int, tap: Tap | None) -> Floats:
        """Residual stream (n, hidden) -> (rows, hidden)."""
        x = self.mixer(x, (self.attn_norm, self.eps), positions, cache, rows, tap)
        return self.feed_forward(x) if rows else x

    def read_tree(
        self, x: Floats, norm: Norm | Ready, nodes: Nodes, cache: Cache, trace: DeltaTrace | None, then: Norm
    ) -> tuple[Floats, Norm | Ready]:
        """As `Mixer.read_tree`, and the second half."""
        x, norm = self.mixer.read_tree(x, norm, nodes, cache, trace, (self.ffn_norm, self.eps))
        h = gated_project(x, self.ffn_gate, self.ffn_up, norm, self.ffn_down)
        return project_add_before(x, h, self.ffn_down, then)

    def feed_forward(self, x: Floats) -> Floats:
        """The second half: ``x + down(silu(gate(norm(x))) * up(norm(x)))``."""
        h = gated_project(x, self.ffn_gate, self.ffn_up, (self.ffn_norm, self.eps), self.ffn_down)
        return project_add(x, h, self.ffn_down)


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention with per-head norms on q and k, RoPE, and in Qwen3.5 a sigmoid gate on the output."""

    index: int
    config: ModelConfig
    q: Weight
    k: Weight
    v: Weight
    out: Weight
    norms: HeadNorms

    @classmethod
    def take(cls, store: Store, index: int) -> Attention:
        """Build from split q, k, v tensors or from a fused attn_qkv, whose rows are q | k | v."""
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
        return cls(
            index=index,
            config=config,
            q=q,
            k=k,
            v=v,
            out=store.matrix(f"{blk}attn_output.weight", (hidden, config.heads * d)),
            norms=HeadNorms(
                store.vector(f"{blk}attn_q_norm.weight", d), store.vector(f"{blk}attn_k_norm.weight", d), config.eps
            ),
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
            x, cache.attend_tree(self.index, q, nodes.seen, gate=gate, reader=self.out), self.out, then
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
        last = x[n - rows :]
        # A gated q weight holds, head by head, head_dim query rows and then head_dim gate rows.
        if rows == n:
            wide, k, v = project(x, (self.q, self.k, self.v), norm)
        else:
            (wide,), (k, v) = project(last, (self.q,), norm), project(x, (self.k, self.v), norm)
        wide = wide.reshape(rows, c.heads, self.q.shape[0] // c.heads)
        k, v = k.reshape(n, c.kv_heads, c.head_dim), v.reshape(n, c.kv_heads, c.head_dim)
        gate = wide if c.gated else None
        if rows == n and tap is None:
            return cache.append_heads(self.index, wide, k, v, self.norms, positions, out), gate
        k = head_norm_rope(k, c.head_dim, self.norms.k, self.norms.eps, positions, c.rope)
        cache.append(self.index, k, v)
        q = head_norm_rope(wide, c.head_dim, self.norms.q, self.norms.eps, positions[n - rows :], c.rope)
        if tap is not None:
            tap(self.index, q, k, positions)
        return q, gate

    def leave(self, x: Floats, attended: Floats) -> Floats:
        """All that comes after attention: its output (rows, heads * head_dim), added to the stream (rows, hidden)."""
        return project_add(x, attended, self.out)
