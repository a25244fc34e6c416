"""prefill_sparse: a prompt read with few key blocks in the attention layers, whole or in chunks after a prefix."""

from __future__ import annotations

from dataclasses import replace

from sp.arrays import Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.model import Model
from sp.models.passes.forward import CHUNK, Progress, checked, slices
from sp.models.passes.layer_attention import SparseAttention
from sp.models.passes.layerwise import prefill_by_layer
from sp.ops.sparse.block_selector import BlockSelector

SPARSE_CHUNK = {"cpu": 8192, "cuda": 32768}
"""Tokens that go through a layer together: on the device, what queries and gates of them leave room for."""


def prefill_sparse(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    selector: BlockSelector,
    *,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> tuple[Floats, tuple[float, ...]]:
    """Read a prompt whose attention layers see, of what came before, the key blocks a selector lists.

    Chunks go one after the other through all layers, each seeing the cache as its prefix. The last query blocks of
    the prompt see everything where the selector has it so; those of the chunks before do not.

    Parameters
    ----------
    model, ids, positions, progress
        See `prefill`.
    cache : Cache
        Of any format, rotated or not; may hold earlier tokens of the same sequence.
    selector : BlockSelector
        ``FlashPrefill(alpha=0.1)`` for example.
    chunk : int, optional
        Tokens of a chunk; a good number by default. The result depends on it a little, since query blocks begin
        where chunks do.

    Returns
    -------
    logits : float32 (vocab,)
        Of the last token, where the model is.
    densities : tuple of float
        Share of the causal blocks that each attention layer read; the last layer, of which one row a chunk is
        computed, reads all and is not listed.

    Raises
    ------
    PromptError
        As `prefill`.
    """
    chunk = SPARSE_CHUNK[model.device] if chunk is None else chunk
    inside = min(chunk, CHUNK[model.device])
    ids, positions = checked(model, ids, positions, cache, chunk, 1)
    attend, told = SparseAttention(selector, ends=False), _whole_tokens(model.config.layers, progress)
    logits = None
    for part, _ in slices(len(ids), chunk, 1):
        if part.stop == len(ids):
            attend = replace(attend, ends=True)  # what was read is shared
        logits = prefill_by_layer(
            model, ids[part], positions[part], cache, chunk=inside, attend=attend, progress=told
        )  # fmt: skip
    assert logits is not None
    return logits, attend.densities()


def _whole_tokens(layers: int, progress: Progress | None) -> Progress | None:
    """Tells of tokens that are through all layers, given tokens x layers."""
    if progress is None:
        return None
    told, tell = 0, progress

    def count(amount: int) -> None:
        nonlocal told
        before, told = told, told + amount
        tell(told // layers - before // layers)

    return count
