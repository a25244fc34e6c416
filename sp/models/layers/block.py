"""Block: a mixer of tokens and a feed-forward, each behind its norm; what both of them are is said here too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sp.arrays import Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.weights import Store
from sp.ops.delta.delta_tree import DeltaTrace
from sp.ops.norms import Norm, Ready

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


class FeedForward(Protocol):
    """The half of a block where each token is alone: one gated product or a mixture of experts."""

    def __call__(self, x: Floats, norm: Norm) -> Floats:
        """Residual stream (n, hidden) -> ``x + ffn(norm(x))``; on the device x itself, added to in place."""
        ...

    def add_before(self, x: Floats, norm: Norm | Ready, then: Norm) -> tuple[Floats, Norm | Ready]:
        """As a call, and with it the norm that comes `then`, begun if it can be: see `project_add_before`."""
        ...


@dataclass(frozen=True)
class Block:
    """A transformer block: ``x += mixer(norm(x)); x += ffn(norm(x))``.

    On the device the residual stream given is overwritten by the one returned; on the CPU it is left alone.
    """

    attn_norm: Floats
    mixer: Mixer
    ffn_norm: Floats
    ffn: FeedForward
    eps: float

    @classmethod
    def take(
        cls,
        store: Store,
        index: int,
        mixer: Callable[[Store, int], Mixer],
        ffn: Callable[[Store, int], FeedForward],
        ffn_norm: str = "ffn_norm",
    ) -> Block:
        """Build block `index` of its two halves, which take their own weights.

        Parameters
        ----------
        store : Store
        index : int
        mixer, ffn : callable
            As `Attention.take` and `SwiGLU.take`.
        ffn_norm : str
            What the architecture calls the norm before the feed-forward.
        """
        hidden, blk = store.config.hidden, f"blk.{index}."
        return cls(
            mixer=mixer(store, index),
            attn_norm=store.vector(f"{blk}attn_norm.weight", hidden),
            ffn_norm=store.vector(f"{blk}{ffn_norm}.weight", hidden),
            ffn=ffn(store, index),
            eps=store.config.eps,
        )

    def __call__(self, x: Floats, positions: Ints, cache: Cache, rows: int, tap: Tap | None) -> Floats:
        """Residual stream (n, hidden) -> (rows, hidden)."""
        x = self.mixer(x, (self.attn_norm, self.eps), positions, cache, rows, tap)
        return self.feed_forward(self.joined(x)) if rows else x

    def joined(self, x: Floats) -> Floats:
        """The stream between the halves: as the first one left it, but where cards share the block."""
        return x

    def read_tree(
        self, x: Floats, norm: Norm | Ready, nodes: Nodes, cache: Cache, trace: DeltaTrace | None, then: Norm
    ) -> tuple[Floats, Norm | Ready]:
        """As `Mixer.read_tree`, and the second half."""
        x, norm = self.mixer.read_tree(x, norm, nodes, cache, trace, (self.ffn_norm, self.eps))
        return self.ffn.add_before(x, norm, then)

    def feed_forward(self, x: Floats) -> Floats:
        """The second half: ``x + ffn(norm(x))``."""
        return self.ffn(x, (self.ffn_norm, self.eps))
