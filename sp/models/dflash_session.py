"""DraftSession: what a draft remembers of one sequence, and its guesses about how it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.kernels import import_cupy
from sp.kernels.declared.sequence import MASKED_BLOCK
from sp.models.blocks import Attention, Block
from sp.models.cache import Cache
from sp.models.model import Model
from sp.ops.feature_rows import pick_features
from sp.ops.head_norm_rope import head_norm_rope
from sp.ops.norms import rms_norm
from sp.ops.project import project
from sp.ops.tree_attention import seen_words

if TYPE_CHECKING:
    from sp.models.dflash import Draft


class DraftSession:
    """A draft at work on one sequence; `Draft.begin` makes one.

    Parameters
    ----------
    draft : Draft
    target : Model
        Lends its embedding and its head.
    cache : Cache
        Of the draft's own layers, with room for a block behind what is to be remembered.
    """

    def __init__(self, draft: Draft, target: Model, cache: Cache) -> None:
        self._draft, self._target, self._cache = draft, target, cache
        self.block_size, self.layers = draft.block_size, draft.layers
        rules = zip(draft.config.causal, draft.config.windows, strict=True)
        words = [seen_words(block_mask(self.block_size, causal, window)) for causal, window in rules]
        self._seen = [target.place(word, np.uint64) for word in words]

    def remember(self, features: Floats, positions: Ints) -> None:
        """Take in tokens the target has read, in order.

        Parameters
        ----------
        features : float32 (n, target_layers * hidden), on the device bf16
            Outputs of the target's layers, side by side.
        positions : int64 (n,)
            Where they stand; gaps allowed.
        """
        self._store(features, self._target.place(positions))

    def guess(self, token: int, position: int, depth: int) -> Floats:
        """Logits (depth, vocab) of the `depth` tokens after `token`, each guessed without knowing the others.

        Parameters
        ----------
        token : int
            The last one known; the target has not read it yet.
        position : int
            Where it stands.
        depth : int
            1 to ``block_size - 1``.
        """
        c = self._draft.config
        assert 1 <= depth < c.block_size, f"{depth} of a block of {c.block_size}"
        ids = np.full(c.block_size, c.mask_id)
        ids[0] = token
        return self._read_block(ids, self._target.place(position + np.arange(c.block_size)), depth)

    def reserve(self) -> None:
        """Take the pages that the next `follow` needs, which a CUDA graph cannot do."""
        self._cache.reserve(self.block_size)

    def follow(self, features: Any, positions: Any, path: Any, kept: Any, token: Any, position: Any) -> Any:
        """On the device: `remember` what was kept of a tree, and `guess` all that a block holds after it.

        Everything is read from device memory and the launches are always the same, so a CUDA graph can hold them.
        Before every run `reserve` must be called, after it `count`.

        Parameters
        ----------
        features : bf16 (nodes, target_layers * hidden)
        positions : int64 (nodes,)
        path : int32 (block_size or more,)
            Nodes that were kept, the first `kept` of it.
        kept : int32 (1,)
            0 to `block_size`.
        token : int32 (1,)
        position : int64 (1,)

        Returns
        -------
        float32 (block_size - 1, vocab)
        """
        cupy, size = import_cupy(), self.block_size
        # A full set of rows is stored, whatever `kept` is, and only so many are counted; the block covers the others.
        self._store(*pick_features(features, positions, path, kept, size))
        self._cache.count(-size)
        self._cache.advance(-size, kept)
        ids, where = cupy.empty(size, np.int32), cupy.empty(size, np.int64)
        MASKED_BLOCK.launch((-(-size // 64),), token, position, ids, where, self._draft.config.mask_id, size)
        return self._read_block(ids, where, size - 1)

    def count(self, kept: int) -> None:
        """Count on the host the tokens that `follow` has remembered."""
        self._cache.count(kept)

    def _store(self, features: Floats, positions: Ints) -> None:
        """Keys and values of all layers for tokens the target has read."""
        draft, mixers = self._draft, [_mixer(block) for block in self._draft.blocks]
        with self._cache.together(len(positions)):
            (fused,) = project(features, (draft.fuse,), f32=(True,))
            fused = rms_norm(fused, draft.hidden_norm, draft.config.model.eps)
            # Without attn_norm, which is for the block, so that all layers read the same.
            found = project(fused, [weight for mixer in mixers for weight in (mixer.k, mixer.v)])
            for layer, mixer in enumerate(mixers):
                k, v = found[2 * layer : 2 * layer + 2]
                self._cache.append(layer, self._turned(k, mixer.k_norm, positions), self._heads(v))

    def _read_block(self, ids: Ints, positions: Ints, depth: int) -> Floats:
        """Logits (depth, vocab) of a block behind its first token; nothing of it stays in the cache."""
        draft, size = self._draft, self.block_size
        with self._cache.together(size):
            x = self._target.embed(ids)
            for layer, block in enumerate(draft.blocks):
                x = self._through(layer, block, x, positions)
        self._cache.count(-size)
        self._cache.advance(-size)
        norm = draft.output_norm, draft.config.model.eps
        (logits,) = project(x[1 : 1 + depth], (self._target.trunk.output,), norm, f32=(True,))
        return logits

    def _through(self, layer: int, block: Block, x: Floats, positions: Ints) -> Floats:
        """The block (block_size, hidden) through a layer."""
        mixer, norm = _mixer(block), (block.attn_norm, block.eps)
        q, _ = mixer.enter(x, norm, positions, self._cache, len(x))
        attended = self._cache.attend_tree(layer, q, self._seen[layer], self._draft.config.windows[layer])
        return block.feed_forward(mixer.leave(x, attended))

    def _heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), -1, self._draft.config.model.head_dim)

    def _turned(self, x: Floats, weight: Floats, positions: Ints) -> Floats:
        c = self._draft.config.model
        return head_norm_rope(self._heads(x), weight, c.eps, positions, c.rope_base, c.rope_dim)


def block_mask(size: int, causal: bool, window: int | None) -> Bools:
    """Which tokens of a block each one sees: bool (size, size).

    Examples
    --------
    >>> block_mask(3, True, 2).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    back = np.arange(size)[:, None] - np.arange(size)
    seen: Bools = abs(back) < (size if window is None else window)
    return seen & (back >= 0) if causal else seen


def _mixer(block: Block) -> Attention:
    assert isinstance(block.mixer, Attention), "a draft attends in every layer"
    return block.mixer
