"""DraftSession: a draft's cache of one sequence, and its predictions of the next tokens."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy
from sp.models.cache.cache import AT_ONCE, Cache
from sp.models.drafts.dflash import Draft
from sp.models.layer.attention import Attention
from sp.models.layer.block import Block
from sp.models.layer.steps import Flow, Nodes
from sp.models.network.model import Model
from sp.models.run.captured_graph import CapturedGraph, PinnedStaging
from sp.ops.attention.attention_heads import context_heads
from sp.ops.attention.tree_attention import seen_words
from sp.ops.matmul.project import project
from sp.ops.norms import rms_norm
from sp.quant import Weight


class DraftSession:
    """A draft at work on one sequence; `begin` makes one with a cache of its own.

    On the device, on a stream that can be captured, predictions and updates of at most a block of tokens are CUDA
    graphs from their second time on. `target`: provides embedding and head. `cache`: of the draft's own layers, with
    room for a block after the stored tokens. `eager`: launch everything kernel by kernel, as a reference. If GPUs share
    the target, each of them has the whole draft.
    """

    def __init__(self, draft: Draft, target: Model, cache: Cache, *, eager: bool = False) -> None:
        self._draft, self._target, self._cache = draft, target, cache
        self.block_size, self.layers = draft.block_size, draft.layers
        rules = zip(draft.config.causal, draft.config.windows, strict=True)
        words = [seen_words(block_mask(self.block_size, causal, window)) for causal, window in rules]
        self._seen = [target.place(word, np.uint64) for word in words]
        self._graphs = None if target.device == "cpu" else _Graphs(self, target, eager or not target.captures)

    @classmethod
    def begin(cls, draft: Draft, target: Model, tokens: int, kv: str = "f16", *, eager: bool = False) -> DraftSession:
        """Create a session for a sequence of at most `tokens`; `kv` as for `Cache`. ConfigError if target and draft are
        on different devices."""
        if target.device != draft.device:
            raise ConfigError(
                f"the target is on {target.device} and its draft on {draft.device}; load both on the same device"
            )
        c = draft.config
        cache = Cache(c.model, tokens + c.block_size, kv, device=draft.device, windows=c.windows)
        return cls(draft, target, cache, eager=eager)

    def remember(self, features: Floats, positions: Ints) -> None:
        """Store tokens that the target has read, in order. `features`, float32 (n, target_layers * hidden), on the
        device bf16: outputs of the target's layers, concatenated. `positions`, int64 (n,): RoPE positions, on the host;
        gaps are allowed."""
        if self._graphs is None or len(positions) > self.block_size:
            for start in range(0, len(positions), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                self.store(features[part], self._target.place(positions[part]))
        else:
            self._graphs.remember(self, features, positions)

    def guess(self, token: int, position: int, depth: int) -> Floats:
        """Return the logits of the `depth` tokens after `token`, each predicted without knowledge of the others.
        `token`: the last known token, which the target has not read yet. `position`: its position. `depth`: 1 to
        ``block_size - 1``. Returns float32 (depth, vocab): on the device, valid until the next call."""
        c = self._draft.config
        assert 1 <= depth < c.block_size, f"{depth} of a block of {c.block_size}"
        ids, positions = np.full(c.block_size, c.mask_id), position + np.arange(c.block_size)
        ids[0] = token
        if self._graphs is None:
            return self.read_block(ids, positions)[:depth]
        logits: Floats = self._graphs.guess(self, ids, positions)[:depth]
        self._target.wait_until_done()
        return logits

    def reset(self) -> None:
        """Forget every token, keeping the memory."""
        self._cache.reset()

    def end(self) -> None:
        """Free the graphs and their memory, when no work is under way; they are captured again if the session
        goes on."""
        if self._graphs is not None:
            self._graphs.clear()

    def store(self, features: Floats, positions: Ints) -> None:
        """Store keys and values of all layers for tokens that the target has read; `positions` where the target is."""
        draft, mixers, rotary = self._draft, list(map(_mixer, self._draft.blocks)), self._cache.config.rope
        with self._cache.together(len(positions)):
            (fused,) = project(features, (draft.fuse,), f32=(True,))
            fused = rms_norm(fused, draft.hidden_norm, draft.config.model.eps)
            # attn_norm applies to the block only, so all layers project the same features.
            keys_values = project(fused, [weight for mixer in mixers for weight in _keys_and_values(mixer)])
            for layer, mixer in enumerate(mixers):
                k, v = (
                    x.reshape(len(x), -1, self._cache.config.head_dim) for x in keys_values[2 * layer : 2 * layer + 2]
                )
                context_heads(k, v, mixer.norms, positions, rotary, self._cache.add(layer, len(k)))

    def read_block(self, ids: Ints, positions: Ints) -> Floats:
        """Return the logits (block_size - 1, vocab) of a block after its first token; nothing of it stays in the
        cache."""
        draft, size = self._draft, self.block_size
        with self._cache.together(size):
            x = self._target.full_stream(self._target.embed(ids, normed=False))
            if draft.config.embedding_scale != 1:
                x *= np.float32(draft.config.embedding_scale)
            for block, seen in zip(draft.blocks, self._seen, strict=True):
                flow = Flow(x, positions, self._cache, size, nodes=Nodes(ids, positions, seen))
                for step in chain(*block.steps()):
                    step(flow)
                x = flow.x
        self._cache.count(-size)
        self._cache.advance(-size)
        return self._target.head(x[1:], (draft.output_norm, draft.config.model.eps))


class _Graphs:
    """Graphs of the two operations of a draft step, with buffers at fixed addresses."""

    def __init__(self, session: DraftSession, target: Model, eager: bool) -> None:
        size = session.block_size
        self._cache, self._size = session._cache, size
        options: dict[str, Any] = {"eager": eager, "all_agree": target.all_agree, "cache": self._cache}
        self._features = import_cupy().zeros((size, session._draft.fuse.shape[1]), np.uint16)
        self._read = PinnedStaging(positions=(np.int64, size), kept=(np.int32, 1))
        self._block = PinnedStaging(ids=(np.int32, size), positions=(np.int64, size))
        self._remember: CapturedGraph[None] = CapturedGraph(**options)
        self._guess: CapturedGraph[Floats] = CapturedGraph(**options)

    def remember(self, session: DraftSession, features: Any, positions: Ints) -> None:
        """Run `DraftSession.remember` for at most `block_size` tokens."""
        n, size, host = len(positions), self._size, self._read.open()
        # Pages are allocated before the graph runs, which cannot allocate.
        self._cache.reserve(size)
        self._features[:n] = features
        host["positions"][:n], host["kept"][:] = positions, n
        self._read.send()

        def store() -> None:
            """Store all rows, so that one graph serves any number of tokens; the block overwrites the surplus."""
            session.store(self._features, self._read.device["positions"])
            self._cache.count(-size)
            self._cache.advance(-size, self._read.device["kept"])

        self._remember(store)
        self._cache.count(n)

    def guess(self, session: DraftSession, ids: Ints, positions: Ints) -> Any:
        """Run `DraftSession.read_block` for arrays on the host."""
        host, block = self._block.open(), self._block.device
        self._cache.reserve(self._size)
        host["ids"][:], host["positions"][:] = ids, positions
        self._block.send()
        return self._guess(lambda: session.read_block(block["ids"], block["positions"]))

    def clear(self) -> None:
        """Drop the graphs."""
        self._remember.clear()
        self._guess.clear()


def block_mask(size: int, causal: bool, window: int | None) -> Bools:
    """Return which tokens of a block each one sees: bool (size, size)."""
    distance = np.arange(size)[:, None] - np.arange(size)
    seen: Bools = abs(distance) < (size if window is None else window)
    return seen & (distance >= 0) if causal else seen


def _mixer(block: Block) -> Attention:
    assert isinstance(block.mixer, Attention), "a draft attends in every layer"
    return block.mixer


def _keys_and_values(mixer: Attention) -> tuple[Weight, Weight]:
    assert mixer.v is not None, "a draft's values have a matrix of their own"
    return mixer.k, mixer.v
