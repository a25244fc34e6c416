"""new_cycle: the cycle for where a model is."""

from __future__ import annotations

from sp.decode.cycle import Cycle, Guesser
from sp.decode.graph_cycle import GraphCycle
from sp.models import Cache, Model


def new_cycle(model: Model, guesser: Guesser, cache: Cache, nodes: int) -> Cycle:
    """A cycle for trees of at most `nodes` nodes; on the device in CUDA graphs, where the model can be captured."""
    kind = GraphCycle if model.device == "cuda" and model.captures else Cycle
    return kind(model, guesser, cache, nodes)
