"""Expert imbalance: how unevenly the routers of a model spread tokens over experts, reported next to every time of a
mixture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy
from sp.models.layer.cold_experts import count_choices
from sp.models.layer.feed_forward import Experts
from sp.models.network.model import Model
from sp.models.run.chunked import prefill
from sp.ops.norms import Norm, Ready
from sp.quant import Weight


@dataclass(frozen=True)
class CountingExperts:
    """Experts that count the tokens routed to each of them; see `FeedForward`."""

    experts: Experts
    counts: Any = field(compare=False)
    increment: Any = field(compare=False)

    down: ClassVar[None] = None

    def __call__(self, x: Floats, norm: Norm | Ready, consumer: Weight | None) -> Any:
        """Compute the experts, and count the tokens routed to each."""
        output = self.experts(x, norm, consumer)
        count_choices(self.counts, output.routing.experts, self.increment)
        return output


def with_counted_experts(model: Model) -> tuple[Model, Any]:
    """Return a model that counts its routing, and the counts: uint32 (layers, count) where the model is, updated in
    place."""
    assert model.config.experts is not None
    xp = np if model.device == "cpu" else import_cupy()
    counts, increment = xp.zeros((model.config.layers, model.config.experts.count), "uint32"), xp.ones(1, "uint32")
    blocks = tuple(
        replace(block, ffn=CountingExperts(block.ffn, row, increment)) if isinstance(block.ffn, Experts) else block
        for block, row in zip(model.weights.blocks, counts, strict=True)
    )
    return Model(model.config, replace(model.weights, blocks=blocks), model.device, model.nbytes), counts


def imbalance(model: Model, tokens: int) -> float | None:
    """Return the load of the most loaded expert over the mean load, averaged over layers, for random tokens read at
    once.

    Parameters
    ----------
    tokens : int
        Number of tokens to read.

    Returns
    -------
    float or None
        From 1, a balanced load, to experts / used; None for a model without experts.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from sp.models import load_model
    >>> from sp.models.synthetic.synthetic import write_synthetic
    >>> file = write_synthetic(pathlib.Path(tempfile.mkdtemp()) / "m.gguf", "tiny-qwen3moe", "q4_k_m")
    >>> 1 < imbalance(load_model(file), 64) < 4
    True
    """
    if model.config.experts is None:
        return None
    counting, counts = with_counted_experts(model)
    ids = np.random.default_rng(0).integers(0, model.config.vocab, tokens)
    prefill(counting, ids, np.arange(tokens), counting.new_cache(tokens), chunk=tokens)
    loads = counts if model.device == "cpu" else counts.get()
    # without the last layer, which computes one token
    whole = loads[loads.sum(1) == tokens * model.config.experts.used]
    return float(np.mean(whole.max(1) / whole.mean(1)))
