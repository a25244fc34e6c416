"""Models: a GGUF file of architecture qwen3 or qwen35 as embed, layers and head, with a paged cache."""

from __future__ import annotations

from sp.models.blocks import Tap
from sp.models.cache import KV_FORMATS, Cache
from sp.models.config import ARCHITECTURES, DeltaConfig, ModelConfig
from sp.models.cost import Cost, flops, prefill_cost
from sp.models.delta_state import DeltaState
from sp.models.forward import decode_step, prefill, prefill_by_layer
from sp.models.model import Model, load_model

__all__ = [
    "ARCHITECTURES",
    "KV_FORMATS",
    "Cache",
    "Cost",
    "DeltaConfig",
    "DeltaState",
    "Model",
    "ModelConfig",
    "Tap",
    "decode_step",
    "flops",
    "load_model",
    "prefill",
    "prefill_by_layer",
    "prefill_cost",
]
