"""Valid files that sp cannot run: each is refused in one line, with the kind of file and what to use instead.

A key that no one reads is the dangerous case: the model would load and compute something else than it was trained for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from sp import values
from sp.errors import ModelError
from sp.models.file.metadata_keys import MAX_BLOCKS, MAX_SIZE, Keys

OF_LAYERS = "embedding_length_per_layer_input"
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "attn_logit_softcapping": (0,),
    "router_logit_softcapping": (0,),
    "attention.scale": (0,),
    "attention.output_scale": (0, 1),
    "attention.value_scale": (0, 1),
    "attention.temperature_scale": (0,),
    "attention.temperature_length": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.sliding_window": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.causal": (True,),
    "attention.sinks": (False,),
    "use_parallel_residual": (False,),
    "hidden_activation": ("silu", "swish"),
    OF_LAYERS: (0,),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),
    "expert_weights_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "leading_dense_block_count": (0,),
    "moe_every_n_layers": (0, 1),
    "interleave_moe_layer_step": (0, 1),
}
"""Keys that change what a model computes, each with the values that change nothing; 0 stands for absent in GGUF files.

Source: gguf-py, ``gguf/constants.py``, and the loaders of llama.cpp, ``src/models``.
"""
EXPERTS = "a mixture of experts"
SHORT = 24  # most characters shown of an architecture's name, next to the list of supported ones
KINDS = {
    "dflash": "a DFlash draft, not a model by itself: pass it with --speculator, and its target with --target",
    "dspark": "a DSpark draft, not a model by itself",
    "eagle": "an EAGLE draft, not a model by itself",
    "assistant": "a draft, not a model by itself",
    "clip": "an encoder of pictures or sound, not a language model",
    "bert": "an encoder, not a language model",
    "gemma3n": "with embeddings of every layer, AltUp and layers that share keys, which sp does not support",
    "laguna": "with softplus gates, other numbers of heads by layer and sigmoid routers, which sp does not support",
    "qwen4exp": "with hyper-connections, an indexer of keys and embeddings of n-grams, which sp does not support",
    "deepseek4": "with hyper-connections and compressed attention, which sp does not support",
    "glm-dsa": "with latent attention and an indexer of keys, which sp does not support",
    "glm5next": "with latent attention and an indexer of keys, which sp does not support",
    "minimax-m3": "with an indexer of keys and sigmoid routers, which sp does not support",
    "nemotron_h": "with layers of Mamba-2 and latent experts, which sp does not support",
    "moe": EXPERTS,
    "mixtral": EXPERTS,
    "deepseek2": EXPERTS,
}  # descriptions of unsupported architectures, by a part of their name; the first match counts


def refuse_changed(keys: Keys, honoured: Collection[str] = ()) -> None:
    """Refuse a file whose metadata asks for something that sp does not support. `honoured`: keys of `NEUTRAL` that the
    caller supports. ModelError by ``keys.refuse``; the message names the key, its value and the file."""
    for key, neutral in NEUTRAL.items():
        value = keys.get(key)
        if value is None or key in honoured or _changes_nothing(value, neutral) or _is_default(keys, key, value):
            continue
        reason = f", {EXPERTS}; use a dense model" if key == "expert_count" else _UNREAD
        plain = _plain(value)
        keys.refuse(key, f"is {f'{plain:g}' if isinstance(plain, float) else values.preview(plain)}{reason}")


_UNREAD = ", which sp does not support; use a model without it"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _changes_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return True if a value, or every item of a per-layer list, is neutral."""
    items = values.as_list(value)
    entries = [value] if items is None else items
    return len(entries) <= MAX_BLOCKS and all(
        type(plain := _plain(entry)) in (int, float, bool, str) and plain in neutral for entry in entries
    )


def _is_default(keys: Keys, key: str, value: Any) -> bool:
    """Return True if a number equals the default: the usual scale of scores, or a window at least as long as the
    context."""
    number = values.real(value)
    if number is None:
        return False
    if key == "attention.sliding_window":
        # A window at least as long as the context hides nothing.
        context = values.whole(keys.get("context_length"))
        return context is not None and number >= context
    if key != "attention.scale":
        return False
    heads, hidden, head_dim = (
        values.whole(keys.get(k)) for k in ("attention.head_count", "embedding_length", "attention.key_length")
    )
    # The usual scale is one over the root of the head size.
    if head_dim is None and heads is not None and hidden is not None and heads > 0:
        head_dim = hidden // heads
    return head_dim is not None and 0 < head_dim <= MAX_SIZE and math.isclose(number, head_dim**-0.5, rel_tol=1e-5)


def unsupported(architecture: object, known: Iterable[str]) -> str:
    """Describe an architecture that is not in `known`, and say what to do."""
    name = (values.text(architecture) or "").lower()
    description = next((text for piece, text in KINDS.items() if piece in name), None)
    if description is not None and ":" in description:
        return f"architecture {values.preview(architecture, SHORT)} is {description}"
    kind = f" ({description})" if description else ""
    return (
        f"architecture {values.preview(architecture, SHORT)}{kind} is not supported; sp runs {', '.join(known)}: "
        "use a model of one of them"
    )


def prediction_only(names: Iterable[str]) -> int | None:
    """Return the first block of a file that holds only multi-token prediction, without the main model; None for all
    other files."""
    blocks: set[int] = set()
    heads: set[int] = set()
    for name in names:
        first, _, rest = name.partition(".")
        number, _, part = rest.partition(".")
        # The length limit keeps int() cheap for hostile names.
        if first == "blk" and number.isdecimal() and len(number) < 8:
            blocks.add(int(number))
            if part.startswith("nextn."):
                heads.add(int(number))
    return min(blocks) if blocks and blocks == heads else None


def refuse_prediction(path: str, names: Iterable[str]) -> None:
    """Raise ModelError for a file of multi-token prediction only."""
    block = prediction_only(names)
    if block is not None:
        raise ModelError(
            f"{path}: holds multi-token prediction alone (blk.{block}.nextn), which sp does not run; "
            "use the whole model, and for speculative decoding pass a DFlash draft of it with --speculator"
        )
