"""load_model and Model: a GGUF file as embed, layer and head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, PromptError
from sp.gguf import GGUFFile
from sp.models.blocks import Block, Tap
from sp.models.cache import Cache
from sp.models.config import ModelConfig
from sp.models.qwen3 import qwen3_block
from sp.models.qwen35 import qwen35_block
from sp.models.weights import WeightStore
from sp.ops.embedding import embedding
from sp.ops.project import project
from sp.quant import Weight

BLOCKS: dict[str, Callable[[WeightStore, int], Block]] = {"qwen3": qwen3_block, "qwen35": qwen35_block}


class Model:
    """A language model ready to run; `load_model` makes one.

    Attributes
    ----------
    config : ModelConfig
    nbytes : int
        Bytes of all weights as they are held: float32 where decoded, packed (a view of the file) where not.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: list[Block],
        embed: Weight,
        output_norm: Floats,
        output: Weight,
        nbytes: int,
    ) -> None:
        self.config = config
        self.nbytes = nbytes
        self._blocks = blocks
        self._embed = embed
        self._output_norm = output_norm
        self._output = output

    def new_cache(self, tokens: int, kv: str = "f16", *, rotate: bool = False, layers: int | None = None) -> Cache:
        """An empty cache for `tokens` tokens; see `Cache` for the options."""
        return Cache(self.config, tokens, kv, rotate=rotate, layers=layers)

    def embed(self, ids: Ints) -> Floats:
        """Token ids (n,) -> the residual stream (n, hidden) that enters layer 0.

        Raises
        ------
        PromptError
            For an id outside the vocabulary.
        """
        self.check_ids(ids)
        return embedding(ids, self._embed)

    def check_ids(self, ids: Ints) -> None:
        """PromptError for an id outside the vocabulary."""
        outside = ids[(ids < 0) | (ids >= self.config.vocab)]
        if outside.size:
            raise PromptError(
                f"token id {outside[0]} is outside the vocabulary of {self.config.vocab}; was another tokenizer used?"
            )

    def layer(
        self,
        index: int,
        x: Floats,
        positions: Ints,
        cache: Cache,
        *,
        rows: int | None = None,
        tap: Tap | None = None,
    ) -> Floats:
        """Run one layer over the next tokens of a sequence.

        Parameters
        ----------
        index : int
        x : float32 (n, hidden)
            What the layer before returned for these tokens.
        positions : int64 (n,)
            Where RoPE puts them; gaps allowed. Who sees whom follows the order in the cache.
        cache : Cache
            Takes the keys and values, or the new state, of all n tokens.
        rows : int, optional
            Compute the output only for the last `rows` tokens (0 to n); all by default. Keys, values and states
            are computed for all n in any case.
        tap : callable, optional
            Called as ``tap(index, q, k, positions)`` in attention layers; see `Tap`.

        Returns
        -------
        float32 (rows, hidden)
        """
        n = len(x)
        if len(positions) != n:
            raise PromptError(f"{len(positions)} positions for {n} tokens; give one position a token")
        rows = n if rows is None else rows
        assert 0 <= rows <= n, f"rows {rows} of {n}"
        return self._blocks[index](x, np.asarray(positions, np.int64), cache, rows, tap)

    def head(self, x: Floats) -> Floats:
        """Residual stream after the last layer (n, hidden) -> logits (n, vocab)."""
        (logits,) = project(x, (self._output,), (self._output_norm, self.config.eps))
        return logits


def load_model(file: GGUFFile | str | Path, *, decode_budget: int = 1 << 30, context: int | None = None) -> Model:
    """Build a model from a GGUF file of architecture `qwen3` or `qwen35`.

    Parameters
    ----------
    file : GGUFFile or path
        Weights that stay packed are views of the open file, so a `GGUFFile` passed in must stay open.
    decode_budget : int
        Bytes of float32 to decode weights into, once; a larger model is decoded on every use instead.
    context : int, optional
        Longest prompt to allow, in place of the file's context length; RoPE is extrapolated past that.

    Returns
    -------
    Model

    Raises
    ------
    GGUFError
        When the file cannot be read or uses an unsupported tensor type.
    ModelError
        When its metadata and tensors do not describe a supported model.
    """
    if not isinstance(file, GGUFFile):
        file = GGUFFile.open(file)
    config = ModelConfig.from_gguf(file)
    if context is not None:
        if context < 1:
            raise ConfigError(f"context is {context}; it must be at least 1")
        config = replace(config, context=context)
    store = WeightStore(file, config, decode_budget)
    table = (config.vocab, config.hidden)
    tied = "output.weight" not in store
    # Only rows of the embedding are ever read, unless it is the head as well.
    embed = store.matrix("token_embd.weight", table, keep_packed=not tied)
    output = embed if tied else store.matrix("output.weight", table)
    norm = store.vector("output_norm.weight", config.hidden)
    blocks = [BLOCKS[config.architecture](store, index) for index in range(config.layers)]
    store.finish()
    return Model(config, blocks, embed, norm, output, store.nbytes)
