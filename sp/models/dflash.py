"""Draft: a DFlash block-diffusion model that guesses a whole block of the target's next tokens at once.

Outputs h of a few layers of the target, side by side, pass a matrix and a norm: ``f = rms_norm(W_fc h, hidden_norm)``.
Every layer of the draft makes keys and values of f for what the target has read; the block (the last known token,
then masks) attends to them and to itself. Embedding and head are the target's.

References
----------
z-lab, "DFlash: Block Diffusion for Flash Speculative Decoding", 2026, https://arxiv.org/abs/2602.06036
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.errors import ConfigError
from sp.gguf import GGUFFile
from sp.models.blocks import Attention, Block
from sp.models.cache import Cache
from sp.models.dflash_config import DraftConfig, draft_config, gguf_keys, published_keys
from sp.models.dflash_store import DraftStore
from sp.models.model import Model
from sp.models.safetensors_file import SafetensorsFile
from sp.ops.head_norm_rope import head_norm_rope
from sp.ops.kv_pages import PAGE_TOKENS, kv_gather
from sp.ops.masked_attention import masked_attention
from sp.ops.norms import rms_norm
from sp.ops.project import project
from sp.quant import Weight


@dataclass(frozen=True)
class Draft:
    """A draft ready to run on the CPU; `load_draft` makes one.

    Attributes
    ----------
    path : Path
    config : DraftConfig
    fuse : Weight (hidden, target_layers * hidden)
    hidden_norm : float32 (hidden,)
    blocks : tuple of Block
        Their mixers are `Attention`.
    output_norm : float32 (hidden,)
        Before the target's head.
    """

    path: Path
    config: DraftConfig
    fuse: Weight
    hidden_norm: Floats
    blocks: tuple[Block, ...]
    output_norm: Floats

    @property
    def block_size(self) -> int:
        """Tokens of a block: one known and the rest guessed."""
        return self.config.block_size

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the target whose outputs feed the draft."""
        return self.config.target_layers

    def begin(self, target: Model, tokens: int, kv: str = "f16") -> DraftSession:
        """Memory for a sequence of at most `tokens`; `kv` as for `Cache`."""
        return DraftSession(self, target, Cache(self.config.model, tokens, kv))


class DraftSession:
    """What a draft remembers of one sequence, and its guesses about how it goes on."""

    def __init__(self, draft: Draft, target: Model, cache: Cache) -> None:
        self._draft, self._target, self._cache = draft, target, cache
        self.block_size, self.layers = draft.block_size, draft.layers

    def remember(self, features: Floats, positions: Ints) -> None:
        """Take in tokens the target has read, in order.

        Parameters
        ----------
        features : float32 (n, target_layers * hidden)
        positions : int64 (n,)
            Where they stand; gaps allowed.
        """
        draft, c = self._draft, self._draft.config.model
        (fused,) = project(features, (draft.fuse,))
        fused = rms_norm(fused, draft.hidden_norm, c.eps)
        for layer, block in enumerate(draft.blocks):
            k, v = project(fused, (_mixer(block).k, _mixer(block).v))  # without attn_norm: that is for the block
            self._cache.append(layer, self._turn(k, _mixer(block).k_norm, positions), self._heads(v))

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
        draft, c = self._draft, self._draft.config
        assert 1 <= depth < c.block_size, f"{depth} of a block of {c.block_size}"
        ids = np.full(c.block_size, c.mask_id)
        ids[0] = token
        x, positions = self._target.embed(ids), position + np.arange(c.block_size)
        for layer, block in enumerate(draft.blocks):
            x = self._through(layer, block, x, positions)
        norm = draft.output_norm, c.model.eps
        (logits,) = project(x[1 : 1 + depth], (self._target.trunk.output,), norm)
        return logits

    def _through(self, layer: int, block: Block, x: Floats, positions: Ints) -> Floats:
        """The block (block_size, hidden) through a layer."""
        mixer, norm = _mixer(block), (block.attn_norm, block.eps)
        q, k, v = project(x, (mixer.q, mixer.k, mixer.v), norm)
        past_k, past_v = self._past(layer)
        keys = np.concatenate([past_k, self._turn(k, mixer.k_norm, positions)])
        values = np.concatenate([past_v, self._heads(v)])
        attended = masked_attention(
            self._turn(q, mixer.q_norm, positions), keys, values, self._visible(layer, len(x), len(keys))
        )
        return block.feed_forward(mixer.leave(x, attended.reshape(len(x), -1)))

    def _past(self, layer: int) -> tuple[Floats, Floats]:
        """Keys and values that a layer may still see, from the first page on that its window reaches."""
        at, window = self._cache.stored(layer), self._draft.config.windows[layer]
        first = 0 if window is None else max(0, at.tokens - window) // PAGE_TOKENS
        table, tokens = at.table[first:], at.tokens - first * PAGE_TOKENS
        return kv_gather(at.k, table, tokens, at.fmt), kv_gather(at.v, table, tokens, at.fmt)

    def _visible(self, layer: int, queries: int, keys: int) -> Bools:
        """Who sees whom, by order: bool (queries, keys); the queries are the last of the keys."""
        back = np.arange(keys - queries, keys)[:, None] - np.arange(keys)
        seen = np.ones((queries, keys), bool)
        window = self._draft.config.windows[layer]
        if window is not None:
            seen &= abs(back) < window
        if self._draft.config.causal[layer]:
            seen &= back >= 0
        return seen

    def _heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), -1, self._draft.config.model.head_dim)

    def _turn(self, x: Floats, weight: Floats, positions: Ints) -> Floats:
        c = self._draft.config.model
        return head_norm_rope(self._heads(x), weight, c.eps, positions, c.rope_base, c.rope_dim)


def load_draft(path: str | Path, target: Model, *, decode_budget: int = 1 << 30) -> Draft:
    """Open a draft for a target: a GGUF file, or a .safetensors file with its config.json beside it.

    Parameters
    ----------
    path : path
    target : Model
        On the CPU, where drafts run so far.
    decode_budget : int
        See `load_model`.

    Raises
    ------
    GGUFError, ModelError
        The file is damaged, no complete draft, or one for another target.
    ConfigError
        The target is on the GPU.
    """
    path, c = Path(path), target.config
    require_cpu(target.device)
    file: SafetensorsFile | GGUFFile
    if path.suffix == ".safetensors":
        config = draft_config(published_keys(path.with_name("config.json")), c)
        file = SafetensorsFile.open(path)
    else:
        file = GGUFFile.open(path)
        config = draft_config(gguf_keys(file), c)
    store = DraftStore(file, config.model, decode_budget)
    draft = Draft(
        path=path,
        config=config,
        fuse=store.matrix("fc.weight", (c.hidden, len(config.target_layers) * c.hidden)),
        hidden_norm=store.vector("hidden_norm.weight", c.hidden),
        blocks=tuple(Block.take(store, i, Attention.take(store, i), "ffn_norm") for i in range(config.model.layers)),
        output_norm=store.vector("output_norm.weight", c.hidden),
    )
    store.finish()
    return draft


def require_cpu(device: str) -> None:
    """ConfigError where a draft cannot run."""
    if device != "cpu":
        raise ConfigError("drafts run on the CPU only so far; use --device cpu, or --decode greedy on the GPU")


def _mixer(block: Block) -> Attention:
    assert isinstance(block.mixer, Attention), "a draft attends in every layer"
    return block.mixer
