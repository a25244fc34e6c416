"""DraftConfig: the numbers of a DFlash draft, from the keys of a GGUF file or the config.json of a checkpoint.

GGUF files of three families are about. Architecture ``dflash`` (llama.cpp) keeps its keys beside the usual ones and
numbers target layers by their input; ``dflash-draft`` and ``qwen35-dflash-draft`` have keys of their own below
``<architecture>.dflash`` and number layers by their output, as the published checkpoints do, or give their count alone.
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
}  # what config.json calls a key, where it is not the same name
DRAFT_ARCHITECTURES = ("dflash", "dflash-draft", "qwen35-dflash-draft")  # names of GGUF files that hold a draft
MOST_SCALE = 1e6  # of factors of embeddings and logits, which lie between some thousandths and some hundred
MOST_JSON = 1 << 20  # bytes of a config.json; published ones have some 2,000
USE = "use the draft that was made for this target"
MOST_PADDING = 1023  # rows that an embedding may have beyond the tokens: models round them up, by less than this many


@dataclass(frozen=True)
class DraftConfig:
    """Shape of a draft. `embedding_scale`, `logit_scale`: what the block's embeddings and its logits are multiplied
    by."""

    model: ModelConfig  # of its own layers; vocabulary and context are the target's
    block_size: int  # tokens of a block, the known one before the guesses among them
    mask_id: int  # token that stands for one to be guessed
    target_layers: tuple[int, ...]  # whose outputs are the features, in the order of their columns
    windows: tuple[int | None, ...]  # tokens that a query of each layer sees back to, itself among them; None for all
    causal: tuple[bool, ...]  # whether the tokens of a block see only those before them, layer by layer
    embedding_scale: float = 1.0
    logit_scale: float = 1.0


class DraftKeys(Keys):
    """Keys under the names a kind of file has for them; the first that is there counts."""

    def __init__(self, metadata: Mapping[str, Any], path: str, arch: str | None) -> None:
        super().__init__(arch or "config.json", metadata, path)
        self._published = arch is None

    def name(self, key: str) -> str:
        """What the file calls a key, or would."""
        if self._published:
            return PUBLISHED.get(key, key)
        names = [f"{self.arch}.{key}", f"{self.arch}.dflash.{key}"]
        if key == "mask_token_id":
            names.append("tokenizer.ggml.mask_token_id")
        return next((name for name in names if name in self.metadata), names[0])

    def get(self, key: str) -> Any:
        return self.metadata.get(self.name(key))

    def error(self, key: str, what: str) -> ModelError:
        return ModelError(f"{self.path}: key {self.name(key)} {what}")

    def flags(self, key: str, layers: int) -> tuple[bool, ...] | None:
        """One flag a layer, from a list or for all; None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        items = [value] * layers if isinstance(value, bool) else values.listed(value)
        if items is None or len(items) != layers:
            raise self.error(key, f"is {values.shown(value)}; one flag for each of {layers} layers is needed")
        kinds = {"full_attention": False, "sliding_attention": True} if self._published else {}
        found = [kinds[one] if isinstance(one, str) and one in kinds else values.flag(one) for one in items]
        if None in found:
            raise self.error(key, f"is {values.shown(value)}; sp knows layers with full and with sliding attention")
        return tuple(map(bool, found))

    def scale(self, key: str) -> float:
        """A factor; 1 where there is none, and where it is 0, which stands for none."""
        if not self.is_set(key):
            return 1.0
        found = self.real(key, above=0.0)
        if found > MOST_SCALE:
            raise self.error(key, f"is {found:g}; a factor of at most {MOST_SCALE:g} is needed")
        return found

    def rope_dim(self, head_dim: int) -> int:
        """Values of a head that are turned."""
        if self._published:
            key = "partial_rotary_factor"
            found = round(head_dim * self.scale(key))
        else:
            key = "rope.dimension_count"
            found = self.count(key, default=head_dim)
        if not 2 <= found <= head_dim or found % 2:
            told = values.shown(self.get(key))
            raise self.error(key, f"is {told}, {found} values of a head; it must be even and at most {head_dim}")
        return found


def gguf_keys(file: GGUFFile) -> DraftKeys:
    """The keys of a GGUF file; ModelError if it holds no draft."""
    told = file.metadata.get("general.architecture")
    arch = values.text(told)
    refuse_prediction(str(file.path), file.tensors)
    if arch not in DRAFT_ARCHITECTURES:
        known = ", ".join(DRAFT_ARCHITECTURES)
        raise ModelError(
            f"{file.path}: architecture {values.shown(told)} is no DFlash draft of a kind that sp reads ({known}); "
            f"{USE}"
        )
    return DraftKeys(file.metadata, str(file.path), arch)


def published_keys(path: Path) -> DraftKeys:
    """The keys of a checkpoint's config.json; ModelError if it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_JSON + 1)
        found = json.loads(raw[:MOST_JSON].decode()) if len(raw) <= MOST_JSON else None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); it belongs beside the draft's tensors") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is no JSON; get the draft's own config.json") from None
    if not isinstance(found, dict) or not isinstance(draft := found.get("dflash_config", {}), dict):
        raise ModelError(f"{path}: describes no DFlash draft; get the draft's own config.json")
    named = "rope_parameters" if found.get("rope_parameters") else "rope_scaling"
    turning = found.get(named) or {}
    if not isinstance(turning, dict):
        raise ModelError(f"{path}: key {named} is {values.shown(turning)}; an object is needed, or null")
    found = {f"rope_scaling.{name}": value for name, value in turning.items()} | found
    for name in ("attention_factor", "mscale", "mscale_all_dim", "truncate"):
        if turning.get(name) is not None and turning[name] is not True:
            told = values.shown(turning[name])
            raise ModelError(f"{path}: key rope_scaling.{name} is {told}; sp knows YaRN without it")
    kind = turning.get("rope_type", turning.get("type"))
    inner = {key: turning.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    found = inner | found | {"rope_type": None if kind == "default" else kind}
    return DraftKeys({**found, **draft}, str(path), None)


def draft_config(keys: DraftKeys, target: ModelConfig) -> DraftConfig:
    """Read and check a draft's numbers against the target that it is to guess for. ModelError for a missing or
    senseless key, or a draft for another target: by hidden size, vocabulary or layers."""
    hidden, layers = keys.count("embedding_length"), keys.count("block_count", most=1 << 10)
    if hidden != target.hidden:
        raise keys.error("embedding_length", f"is {hidden}, but the target's hidden size is {target.hidden}; {USE}")
    told = keys.get("vocab_size")
    if told is not None and keys.count("vocab_size") != target.vocab:
        raise keys.error("vocab_size", f"is {told}, but the target's embedding has {target.vocab} rows; {USE}")
    listed = values.listed(keys.metadata.get("tokenizer.ggml.tokens"))
    words = 0 if listed is None else len(listed)
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
        causal=keys.flags("attention.causal", layers) or sliding,
        embedding_scale=keys.scale("embedding_scale"),
        logit_scale=keys.scale("logit_scale"),
    )


def _target_layers(keys: DraftKeys, layers: int) -> tuple[int, ...]:
    """Layers of the target whose outputs are wanted, counted from 0."""
    key, shift = ("target_layers", 1) if keys.get("target_layers") is not None else ("target_layer_ids", 0)
    told = keys.get(key)
    if told is None and keys.get("n_target_layers") is not None:
        count = keys.count("n_target_layers", least=2, most=layers)  # spread from the second layer to nearly the last
        told = [1 + i * ((layers - 2) // (count - 1)) for i in range(count)]
    listed = values.listed(told)
    if listed is None or not len(listed):
        raise keys.error(key, f"is {values.shown(told)}; the target's layers that feed the draft are needed")
    numbers = [values.whole(one) for one in listed[: layers + 1]]
    found = tuple(one - shift for one in numbers if one is not None and 0 <= one - shift < layers)
    if len(set(found)) != len(listed):
        raise keys.error(key, f"is {values.shown(told)}, no {len(listed)} layers of a target that has {layers}; {USE}")
    return found
