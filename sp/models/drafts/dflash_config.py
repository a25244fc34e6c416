"""DraftConfig: the numbers of a DFlash draft, from the keys of a GGUF file or the config.json of a checkpoint.

GGUF files come in three families. Architecture ``dflash`` (llama.cpp) stores its keys next to the usual ones and
numbers target layers by their input; ``dflash-draft`` and ``qwen35-dflash-draft`` have keys of their own under
``<architecture>.dflash`` and number layers by their output, like the published checkpoints, or give only their count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp import values
from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models.config import LayerKind, ModelConfig
from sp.models.file.metadata_keys import Keys
from sp.models.file.refusals import refuse_prediction
from sp.models.file.rope_keys import read_rope
from sp.ops.attention.tree_attention import MOST_QUERIES

PUBLISHED = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "rope.scaling.factor": "rope_scaling.factor",
    "rope.scaling.original_context_length": "rope_scaling.original_max_position_embeddings",
    "rope.scaling.yarn_ext_factor": "rope_scaling.extrapolation_factor",
    "rope.scaling.yarn_beta_fast": "rope_scaling.beta_fast",
    "rope.scaling.yarn_beta_slow": "rope_scaling.beta_slow",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "layer_types",
    "attention.causal": "is_causal",
    "rope.freq_base": "rope_theta",
    "rope.scaling.type": "rope_type",
    "attention.value_scale": "attention_value_scale",
    "hidden_activation": "hidden_act",
    "expert_count": "num_experts",
}  # names of keys in config.json, where they differ
DRAFT_ARCHITECTURES = ("dflash", "dflash-draft", "qwen35-dflash-draft")  # names of GGUF files that hold a draft
MOST_SCALE = 1e6  # of factors on embeddings and logits; real ones are between about 0.001 and a few hundred
MOST_JSON = 1 << 20  # bytes of a config.json; published ones have some 2,000
USE = "use the draft that was made for this target"
MOST_PADDING = 1023  # most rows of an embedding beyond its tokens: models round the number up


@dataclass(frozen=True)
class DraftConfig:
    """Shape of a draft. `embedding_scale`, `logit_scale`: factors on the block's embeddings and on its logits."""

    model: ModelConfig  # the draft's own layers, with vocabulary and context of the target
    block_size: int  # tokens of a block, including the known first one
    mask_id: int  # placeholder of a token to be predicted
    target_layers: tuple[int, ...]  # layers whose outputs are the features, in column order
    windows: tuple[int | None, ...]  # sliding window of each layer in tokens, itself included; None for all
    causal: tuple[bool, ...]  # True if tokens of a block see only earlier ones, by layer
    embedding_scale: float = 1.0
    logit_scale: float = 1.0


class DraftKeys(Keys):
    """Keys under the names that a kind of file uses; the first name that is present counts."""

    def __init__(self, metadata: Mapping[str, Any], path: str, arch: str | None) -> None:
        super().__init__(arch or "config.json", metadata, path)
        self._published = arch is None

    def name(self, key: str) -> str:
        """Return the name of a key in the file, or the name it would have."""
        if self._published:
            return PUBLISHED.get(key, key)
        names = [f"{self.arch}.{key}", f"{self.arch}.dflash.{key}"]
        if key == "mask_token_id":
            names.append("tokenizer.ggml.mask_token_id")
        return next((name for name in names if name in self.metadata), names[0])

    def get(self, key: str) -> Any:
        return self.metadata.get(self.name(key))

    def error(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self.path}: key {self.name(key)} {problem}")

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """Read one flag per layer, from a list or one value for all; None without the key."""
        value = self.get(key)
        if value is None:
            return None
        items = [value] * layers if isinstance(value, bool) else values.as_list(value)
        if items is None or len(items) != layers:
            raise self.error(key, f"is {values.preview(value)}; it must have one flag for each of {layers} layers")
        kinds = {"full_attention": False, "sliding_attention": True} if self._published else {}
        flags = [kinds[item] if isinstance(item, str) and item in kinds else values.flag(item) for item in items]
        if None in flags:
            raise self.error(key, f"is {values.preview(value)}; sp supports full_attention and sliding_attention")
        return tuple(map(bool, flags))

    def scale(self, key: str) -> float:
        """Read a factor; 1 if it is missing or 0, which means none."""
        if not self.is_set(key):
            return 1.0
        factor = self.real(key, above=0.0)
        if factor > MOST_SCALE:
            raise self.error(key, f"is {factor:g}; it must be at most {MOST_SCALE:g}")
        return factor

    def rope_dim(self, head_dim: int) -> int:
        """Read the number of values of a head that RoPE rotates."""
        if self._published:
            key = "partial_rotary_factor"
            rotated = round(head_dim * self.scale(key))
        else:
            key = "rope.dimension_count"
            rotated = self.count(key, default=head_dim)
        if not 2 <= rotated <= head_dim or rotated % 2:
            value = values.preview(self.get(key))
            raise self.error(key, f"is {value}, {rotated} values of a head; it must be even and at most {head_dim}")
        return rotated


def gguf_keys(file: GGUFFile) -> DraftKeys:
    """Return the keys of a GGUF file; ModelError if it holds no draft."""
    architecture = file.metadata.get("general.architecture")
    arch = values.text(architecture)
    refuse_prediction(str(file.path), file.tensors)
    if arch not in DRAFT_ARCHITECTURES:
        known = ", ".join(DRAFT_ARCHITECTURES)
        raise ModelError(
            f"{file.path}: architecture {values.preview(architecture)} is no DFlash draft that sp reads ({known}); "
            f"{USE}"
        )
    return DraftKeys(file.metadata, str(file.path), arch)


def published_keys(path: Path) -> DraftKeys:
    """Return the keys of a checkpoint's config.json; ModelError if it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_JSON + 1)
        keys = json.loads(raw[:MOST_JSON].decode()) if len(raw) <= MOST_JSON else None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); put it next to the draft's tensors") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is not JSON; get the draft's own config.json") from None
    if not isinstance(keys, dict) or not isinstance(draft := keys.get("dflash_config", {}), dict):
        raise ModelError(f"{path}: describes no DFlash draft; get the draft's own config.json")
    # transformers 5 renamed rope_scaling to rope_parameters.
    scaling_key = "rope_parameters" if keys.get("rope_parameters") else "rope_scaling"
    scaling = keys.get(scaling_key) or {}
    if not isinstance(scaling, dict):
        raise ModelError(f"{path}: key {scaling_key} is {values.preview(scaling)}; an object is needed, or null")
    keys = {f"rope_scaling.{name}": value for name, value in scaling.items()} | keys
    for name in ("attention_factor", "mscale", "mscale_all_dim", "truncate"):
        if scaling.get(name) is not None and scaling[name] is not True:
            value = values.preview(scaling[name])
            raise ModelError(f"{path}: key rope_scaling.{name} is {value}; sp supports YaRN without it")
    # Older files call the type "type"; "default" means none.
    kind = scaling.get("rope_type", scaling.get("type"))
    inner = {key: scaling.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    keys = inner | keys | {"rope_type": None if kind == "default" else kind}
    return DraftKeys({**keys, **draft}, str(path), None)


def draft_config(keys: DraftKeys, target: ModelConfig) -> DraftConfig:
    """Read a draft's numbers and check them against its target. ModelError for a missing or invalid key, or a draft for
    another target: by hidden size, vocabulary or layers."""
    hidden, layers = keys.count("embedding_length"), keys.count("block_count", most=1 << 10)
    if hidden != target.hidden:
        raise keys.error("embedding_length", f"is {hidden}, but the target's hidden size is {target.hidden}; {USE}")
    vocab = keys.get("vocab_size")
    if vocab is not None and keys.count("vocab_size") != target.vocab:
        raise keys.error("vocab_size", f"is {vocab}, but the target's embedding has {target.vocab} rows; {USE}")
    tokens = values.as_list(keys.metadata.get("tokenizer.ggml.tokens"))
    # The tokenizer must be the target's, since draft and target exchange token ids.
    words = 0 if tokens is None else len(tokens)
    # An embedding may be padded beyond the tokens, but never shorter.
    if words and not words <= target.vocab <= words + MOST_PADDING:
        raise ModelError(f"{keys.path}: has {words} tokens, but the target's embedding has {target.vocab} rows; {USE}")
    mask_id = keys.count("mask_token_id", least=0)
    if mask_id >= target.vocab:
        raise keys.error("mask_token_id", f"is {mask_id}, outside the target's vocabulary of {target.vocab}; {USE}")
    heads = keys.count("attention.head_count")
    kv_heads = keys.count("attention.head_count_kv", default=heads)
    if heads % kv_heads:
        raise keys.error("attention.head_count_kv", f"is {kv_heads}, which does not divide {heads} heads")
    head_dim = keys.count("attention.key_length", default=None if hidden % heads else hidden // heads)
    if head_dim % 2:
        raise keys.error("attention.key_length", f"is {head_dim}; RoPE needs an even head")
    # The context that YaRN covers is ignored: a draft sees the positions of its target.
    rope, _ = read_rope(
        keys, keys.rope_dim(head_dim), keys.count("context_length", default=target.context, most=1 << 40)
    )
    sliding = keys.flags("attention.sliding_window_pattern", layers) or (False,) * layers
    window = keys.count("attention.sliding_window") if any(sliding) else None
    kinds: list[LayerKind] = ["attention"] * layers
    model = ModelConfig(
        architecture="dflash",
        hidden=hidden,
        vocab=target.vocab,
        context=target.context,
        ffn=tuple(keys.per_layer("feed_forward_length", layers)),
        kinds=tuple(kinds),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=rope,
        eps=keys.real("attention.layer_norm_rms_epsilon", above=0.0),
    )
    return DraftConfig(
        model=model,
        block_size=keys.count("block_size", least=2, most=MOST_QUERIES),
        mask_id=mask_id,
        target_layers=_target_layers(keys, target.layers),
        windows=tuple(window if slides else None for slides in sliding),
        # Without the key the sliding layers are the causal ones.
        causal=keys.flags("attention.causal", layers) or sliding,
        embedding_scale=keys.scale("embedding_scale"),
        logit_scale=keys.scale("logit_scale"),
    )


def _target_layers(keys: DraftKeys, layers: int) -> tuple[int, ...]:
    """Read the layers of the target whose outputs feed the draft, counted from 0."""
    key, shift = ("target_layers", 1) if keys.get("target_layers") is not None else ("target_layer_ids", 0)
    value = keys.get(key)
    if value is None and keys.get("n_target_layers") is not None:
        count = keys.count("n_target_layers", least=2, most=layers)  # evenly from the second layer to nearly the last
        value = [1 + i * ((layers - 2) // (count - 1)) for i in range(count)]
    items = values.as_list(value)
    if items is None or not len(items):
        raise keys.error(key, f"is {values.preview(value)}; it must list the target's layers that feed the draft")
    numbers = [values.whole(item) for item in items[: layers + 1]]
    indices = tuple(number - shift for number in numbers if number is not None and 0 <= number - shift < layers)
    if len(set(indices)) != len(items):
        raise keys.error(key, f"is {values.preview(value)}, not {len(items)} layers of a target with {layers}; {USE}")
    return indices
