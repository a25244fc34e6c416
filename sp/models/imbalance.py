"""How unevenly the routers of a model spread tokens over experts: what every time of a mixture is stated with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import is_device
from sp.models import Model, prefill
from sp.models.layers.experts import Experts
from sp.ops.experts.routing import route
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready, rms_norm

TOKENS = 8192
"""Random tokens that are read for it at most."""


@dataclass(frozen=True)
class Watched:
    """Experts that count the slots of each; see `FeedForward`."""

    experts: Experts
    loads: Any

    def __call__(self, x: Floats, norm: Norm) -> Floats:
        """As the experts, noting where tokens go."""
        sizes = self.experts.sizes
        (logits,) = project(rms_norm(x, *norm), (self.experts.router,), f32=(True,))
        chosen = route(logits, sizes.used, normalised=sizes.normalised).experts
        self.loads.append(np.bincount((chosen.get() if is_device(chosen) else chosen).ravel(), minlength=sizes.count))
        return self.experts(x, norm)

    def add_before(self, x: Floats, norm: Norm | Ready, then: Norm) -> tuple[Floats, Norm | Ready]:
        """Not counted."""
        return self.experts.add_before(x, norm, then)


def imbalance(model: Model, tokens: int, seed: int = 0) -> float | None:
    """The most loaded expert's share over the mean, the mean over layers, of random tokens read at once.

    Parameters
    ----------
    model : Model
    tokens : int
        At most `TOKENS` of them are read.
    seed : int

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
    count = min(tokens, TOKENS)
    loads: list[Any] = []
    blocks = tuple(
        replace(block, ffn=Watched(block.ffn, loads)) if isinstance(block.ffn, Experts) else block
        for block in model.trunk.blocks
    )
    watched = Model(model.config, replace(model.trunk, blocks=blocks), model.device, model.nbytes)
    ids = np.random.default_rng(seed).integers(0, model.config.vocab, count)
    prefill(watched, ids, np.arange(count), watched.new_cache(count), chunk=count)
    whole = [load for load in loads if load.sum() == count * model.config.experts.used]  # the last has one
    return float(np.mean([load.max() / load.mean() for load in whole]))
