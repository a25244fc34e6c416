"""What sp makes of a model: its family and sizes, bytes on the device by format and of the cache, cards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sp.errors import ModelError
from sp.gguf.reader import GGUFFile
from sp.models.arithmetic import is_eligible
from sp.models.config import ModelConfig
from sp.models.cost import active_params
from sp.models.inspect.cards import ANSWER, KEEP, LENGTHS, card_rows, drafters_for
from sp.models.inspect.memory import (
    Held,
    file_formats,
    held_weights,
    kv_bytes,
    layer_matrices,
    stack_bytes,
    state_bytes,
)
from sp.models.inspect.ways import caches
from sp.models.rope_keys import rope_facts

SHOWN = 2
"""Drafters that are reckoned with."""


def describe_model(file: GGUFFile, config: ModelConfig | None) -> dict[str, Any]:
    """What is known of a file of that configuration, if it has any.

    Returns
    -------
    dict
        ``family``, ``device`` and ``cards``, each None where the file does not describe a whole model.
    """
    found: dict[str, Any] = {"family": None, "device": None, "cards": None}
    if config is None:
        return found
    found["family"] = family(config)
    formats = file_formats(file)
    try:
        rows = held_weights(config, formats)
    except (ModelError, KeyError):  # too narrow for the device, or not all there
        return found
    weights, stacks = sum(row.nbytes for row in rows), stack_bytes(config, formats)
    drafters = drafters_for(config, sum(info.elements for info in file.tensors.values()))[:SHOWN]
    kv = caches(config)
    return found | {
        "device": {
            "bytes": weights,
            "formats": [asdict(row) | {"kernels": kernels(row)} for row in rows],
            "state_bytes": state_bytes(config),
            "kv_bytes": {name: {str(n): kv_bytes(config, n, name) for n in LENGTHS} for name in kv},
        },
        "cards": {
            "keep_ratio": KEEP,
            "answer_tokens": ANSWER,
            "rows": [row for name in kv for row in card_rows(config, weights, drafters, name, stacks=stacks)],
        },
    }


def family(config: ModelConfig) -> dict[str, Any]:
    """Sizes of a model in the words of its configuration."""
    rope = config.rope
    return {
        "architecture": config.architecture,
        "kind": "hybrid" if config.delta_layers else "attention" if config.experts else "dense",
        "layers": config.layers,
        "attention_layers": len(config.attention_layers),
        "delta_layers": len(config.delta_layers),
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "context": config.context,
        "experts": experts(config),
        "eight_bits": eight_bits(config),
        "rope": rope_facts(rope) | {"pairing": rope.pairing},
    }


def eight_bits(config: ModelConfig) -> dict[str, int]:
    """How many matrices of layers `--math` can have multiplied in eight bits, of all that are not of experts.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> eight_bits(find_shape("qwen3.6-27b").config)
    {'weights': 388, 'matrices': 496}
    """
    matrices = layer_matrices(config)
    return {"weights": sum(is_eligible(each.name, each.shape) for each in matrices), "matrices": len(matrices)}


def experts(config: ModelConfig) -> dict[str, Any] | None:
    """Sizes of a mixture of experts, and the parameters of all layers that a token is multiplied by.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> found = experts(find_shape("qwen3.6-35b-a3b").config)
    >>> found["used"], found["count"], round(found["active_parameters"] / 1e9, 2)
    (8, 256, 2.44)
    """
    if config.experts is None:
        return None
    return asdict(config.experts) | {"active_parameters": active_params(config)}


def kernels(row: Held) -> str:
    """How the device multiplies by a format: with kernels of its own, or as the one that it is re-packed to."""
    return ", ".join("native" if target == row.source else f"as {target}" for target in row.targets)
