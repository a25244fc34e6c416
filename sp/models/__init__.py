"""Models: a GGUF file of architecture qwen3 or qwen35 as embed, layers and head, with a paged cache."""

from __future__ import annotations

from sp.models.blocks import Tap
from sp.models.cache import Cache
from sp.models.config import ARCHITECTURES, DeltaConfig, ModelConfig
from sp.models.cost import Cost, flops, prefill_cost
from sp.models.delta_state import DeltaState
from sp.models.dflash import Draft, load_draft
from sp.models.forward import decode_step, prefill
from sp.models.gaps import Gaps
from sp.models.layer_attention import LayerAttention, SparseAttention, dense_attention
from sp.models.layerwise import Watch, prefill_by_layer, read_by_layer, stream_by_layer
from sp.models.model import Model, load_model
from sp.models.pages import KV_FORMATS
from sp.models.sparse_prefill import prefill_sparse

__all__ = [
    "ARCHITECTURES",
    "KV_FORMATS",
    "Cache",
    "Cost",
    "DeltaConfig",
    "DeltaState",
    "Draft",
    "Gaps",
    "LayerAttention",
    "Model",
    "ModelConfig",
    "SparseAttention",
    "Tap",
    "Watch",
    "decode_step",
    "dense_attention",
    "flops",
    "load_draft",
    "load_model",
    "prefill",
    "prefill_by_layer",
    "prefill_cost",
    "prefill_sparse",
    "read_by_layer",
    "stream_by_layer",
]
