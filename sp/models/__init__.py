"""Models: a GGUF file of a known architecture as embed, layers and head, with a paged cache."""

from __future__ import annotations

from sp.models.cache.cache import Cache
from sp.models.cache.delta_state import DeltaState
from sp.models.cache.kv_type import KVType
from sp.models.cache.session_cache import Checkpoint, SessionCache
from sp.models.config import DeltaConfig, ExpertConfig, ModelConfig, Retrieval
from sp.models.device.load import load_model
from sp.models.drafts.dflash import Draft, load_draft
from sp.models.families.base import ARCHITECTURES, Architecture, read_config, register_architecture
from sp.models.file.rope_keys import RopeScaling, describe_window, needed_scaling, unscalable
from sp.models.layer.steps import dense_attention
from sp.models.network.arithmetic import Arithmetic, read_precision
from sp.models.network.cost import Cost, flops, prefill_cost
from sp.models.network.model import Model
from sp.models.run.chunked import Gaps, decode_step, prefill
from sp.models.run.context_parallel import ContextParallel, read_context_parallel
from sp.models.run.hooks import Hooks
from sp.models.run.layer_attention import LayerAttention, SparseAttention
from sp.models.run.layer_major import prefill_layer_major, prefill_sparse, read_layer_major, stream_layer_major
from sp.models.run.replay import read_with_replay
from sp.models.shards.load_shards import load_shards
from sp.models.shards.shards import Shards

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Arithmetic",
    "Cache",
    "Checkpoint",
    "ContextParallel",
    "Cost",
    "DeltaConfig",
    "DeltaState",
    "Draft",
    "ExpertConfig",
    "Gaps",
    "Hooks",
    "KVType",
    "LayerAttention",
    "Model",
    "ModelConfig",
    "Retrieval",
    "RopeScaling",
    "SessionCache",
    "Shards",
    "SparseAttention",
    "decode_step",
    "dense_attention",
    "describe_window",
    "flops",
    "load_draft",
    "load_model",
    "load_shards",
    "needed_scaling",
    "prefill",
    "prefill_cost",
    "prefill_layer_major",
    "prefill_sparse",
    "read_config",
    "read_context_parallel",
    "read_layer_major",
    "read_precision",
    "read_with_replay",
    "register_architecture",
    "stream_layer_major",
    "unscalable",
]
