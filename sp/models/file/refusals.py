"""Files that are sound and not for sp: each is told in one line, with what it is and what to take instead.

A key that nobody reads is the dangerous kind: the model would load and say something else than it was trained to.
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
SHORT = 24  # characters of what a file calls its architecture, beside the names of all that run
KINDS = {
    "dflash": "a DFlash draft, no model by itself: give it with --speculator, and its target with --target",
    "dspark": "a DSpark draft, no model by itself",
    "eagle": "an EAGLE draft, no model by itself",
    "assistant": "a draft, no model by itself",
    "clip": "an encoder of pictures or sound, no language model",
    "bert": "an encoder, no language model",
    "gemma3n": "with embeddings of every layer, AltUp and layers that share keys, which sp does not compute",
    "laguna": "with softplus gates, other numbers of heads by layer and sigmoid routers, which sp does not compute",
    "qwen4exp": "with hyper-connections, an indexer of keys and embeddings of n-grams, which sp does not compute",
    "deepseek4": "with hyper-connections and compressed attention, which sp does not compute",
    "glm-dsa": "with latent attention and an indexer of keys, which sp does not compute",
    "glm5next": "with latent attention and an indexer of keys, which sp does not compute",
    "minimax-m3": "with an indexer of keys and sigmoid routers, which sp does not compute",
    "nemotron_h": "with layers of Mamba-2 and latent experts, which sp does not compute",
    "moe": EXPERTS,
    "mixtral": EXPERTS,
    "deepseek2": EXPERTS,
}  # what a piece of an architecture's name tells of files that sp does not run; the first that fits counts


def refuse_changed(keys: Keys, honoured: Collection[str] = ()) -> None:
    """Refuse a file whose metadata ask for something that no part of sp computes. `honoured`: keys of `NEUTRAL` that
    whoever asks reads by itself. ModelError: by ``keys.refuse``; the message names the key, its value and the file."""
    for key, neutral in NEUTRAL.items():
        value = keys.get(key)
        if value is None or key in honoured or _changes_nothing(value, neutral) or _is_default(keys, key, value):
            continue
        what = f", {EXPERTS}; take a dense model" if key == "expert_count" else _UNREAD
        plain = _plain(value)
        keys.refuse(key, f"is {f'{plain:g}' if isinstance(plain, float) else values.shown(plain)}{what}")


_UNREAD = ", which sp does not compute; take a model without it"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _changes_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value, or every one of a list by layers, is one of those that change nothing."""
    items = values.listed(value)
    found = [value] if items is None else items
    return len(found) <= MAX_BLOCKS and all(
        type(plain := _plain(one)) in (int, float, bool, str) and plain in neutral for one in found
    )


def _is_default(keys: Keys, key: str, value: Any) -> bool:
    """Whether a number says only what holds without it: the usual scale of scores, or a window that hides nothing."""
    number = values.real(value)
    if number is None:
        return False
    if key == "attention.sliding_window":
        context = values.whole(keys.get("context_length"))
        return context is not None and number >= context
    if key != "attention.scale":
        return False
    heads, hidden, head_dim = (
        values.whole(keys.get(k)) for k in ("attention.head_count", "embedding_length", "attention.key_length")
    )
    if head_dim is None and heads is not None and hidden is not None and heads > 0:
        head_dim = hidden // heads
    return head_dim is not None and 0 < head_dim <= MAX_SIZE and math.isclose(number, head_dim**-0.5, rel_tol=1e-5)


def unsupported(architecture: object, known: Iterable[str]) -> str:
    """What to say of an architecture that is not among those `known`, and what to do."""
    name = (values.text(architecture) or "").lower()
    what = next((told for piece, told in KINDS.items() if piece in name), None)
    if what is not None and ":" in what:
        return f"architecture {values.shown(architecture, SHORT)} is {what}"
    kind = f" ({what})" if what else ""
    return (
        f"architecture {values.shown(architecture, SHORT)}{kind} is not supported; sp runs {', '.join(known)}: "
        "take a model of one of them"
    )


def prediction_only(names: Iterable[str]) -> int | None:
    """The first block of a file that holds multi-token prediction and no trunk; None of all other files."""
    blocks: set[int] = set()
    heads: set[int] = set()
    for name in names:
        first, _, rest = name.partition(".")
        number, _, part = rest.partition(".")
        if first == "blk" and number.isdecimal() and len(number) < 8:
            blocks.add(int(number))
            if part.startswith("nextn."):
                heads.add(int(number))
    return min(blocks) if blocks and blocks == heads else None


def refuse_prediction(path: str, names: Iterable[str]) -> None:
    """ModelError for a file of multi-token prediction alone."""
    block = prediction_only(names)
    if block is not None:
        raise ModelError(
            f"{path}: holds multi-token prediction alone (blk.{block}.nextn), which sp does not run; "
            "give the whole model, and a DFlash draft model of it with --speculator"
        )
