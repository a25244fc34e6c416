"""Models: a GGUF file of a known architecture as embed, layers and head, with a paged cache."""

from __future__ import annotations

from sp.models.architectures.base import ARCHITECTURES, Architecture, read_config, register_architecture
from sp.models.arithmetic import Arithmetic, read_math
from sp.models.asked_scaling import AskedScaling
from sp.models.cache.cache import Cache
from sp.models.cache.checkpoint import Checkpoint
from sp.models.cache.delta_state import DeltaState
from sp.models.cache.pages import KV_FORMATS
from sp.models.cache.trail import Trail
from sp.models.config import DeltaConfig, ExpertConfig, ModelConfig, Retrieval
from sp.models.cost import Cost, flops, prefill_cost
from sp.models.drafts.dflash import Draft, load_draft
from sp.models.layers.block import Tap
from sp.models.load import load_model
from sp.models.model import Model
from sp.models.passes.forward import decode_step, prefill
from sp.models.passes.gaps import Gaps
from sp.models.passes.layer_attention import LayerAttention, SparseAttention, dense_attention
from sp.models.passes.layerwise import prefill_by_layer, read_by_layer, stream_by_layer
from sp.models.passes.on_cards import Cards, read_by_layer_on
from sp.models.passes.repeated_reading import read_repeated
from sp.models.passes.sparse_prefill import prefill_sparse
from sp.models.passes.walk import Watch
from sp.models.shards.load_shards import load_shards
from sp.models.shards.shards import Shards

__all__ = [
    "ARCHITECTURES",
    "KV_FORMATS",
    "Architecture",
    "Arithmetic",
    "AskedScaling",
    "Cache",
    "Cards",
    "Checkpoint",
    "Cost",
    "DeltaConfig",
    "DeltaState",
    "Draft",
    "ExpertConfig",
    "Gaps",
    "LayerAttention",
    "Model",
    "ModelConfig",
    "Retrieval",
    "Shards",
    "SparseAttention",
    "Tap",
    "Trail",
    "Watch",
    "decode_step",
    "dense_attention",
    "flops",
    "load_draft",
    "load_model",
    "load_shards",
    "prefill",
    "prefill_by_layer",
    "prefill_cost",
    "prefill_sparse",
    "read_by_layer",
    "read_by_layer_on",
    "read_config",
    "read_math",
    "read_repeated",
    "register_architecture",
    "stream_by_layer",
]
