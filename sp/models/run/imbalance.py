"""How unevenly the routers of a model spread tokens over experts: what every time of a mixture is stated with."""

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
class Watched:
    """Experts of which it is counted which ones tokens go to; see `FeedForward`."""

    experts: Experts
    counts: Any = field(compare=False)
    one: Any = field(compare=False)

    down: ClassVar[None] = None

    def __call__(self, x: Floats, norm: Norm | Ready, reader: Weight | None) -> Any:
        """As the experts, noting where tokens go."""
        found = self.experts(x, norm, reader)
        count_choices(self.counts, found.routing.experts, self.one)
        return found


def watched(model: Model) -> tuple[Model, Any]:
    """A model that counts its choices, and the counts: uint32 (layers, count) where the model is, changed in place."""
    assert model.config.experts is not None
    xp = np if model.device == "cpu" else import_cupy()
    counts, one = xp.zeros((model.config.layers, model.config.experts.count), "uint32"), xp.ones(1, "uint32")
    blocks = tuple(
        replace(block, ffn=Watched(block.ffn, row, one)) if isinstance(block.ffn, Experts) else block
        for block, row in zip(model.trunk.blocks, counts, strict=True)
    )
    return Model(model.config, replace(model.trunk, blocks=blocks), model.device, model.nbytes), counts


def imbalance(model: Model, tokens: int) -> float | None:
    """The most loaded expert's share over the mean, the mean over layers, of random tokens read at once.

    Parameters
    ----------
    tokens : int
        To read.

    Returns
    -------
    float or None
        From 1, all alike, to experts / used; None of a model without experts.

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
    reader, counts = watched(model)
    ids = np.random.default_rng(0).integers(0, model.config.vocab, tokens)
    prefill(reader, ids, np.arange(tokens), reader.new_cache(tokens), chunk=tokens)
    loads = counts if model.device == "cpu" else counts.get()
    whole = loads[loads.sum(1) == tokens * model.config.experts.used]  # the last layer passes one token
    return float(np.mean(whole.max(1) / whole.mean(1)))
