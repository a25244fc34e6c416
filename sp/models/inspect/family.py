"""What sp makes of a model: its family and sizes, bytes on the device by format and of the cache, cards, a command."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from sp.errors import GGUFError, ModelError
from sp.gguf.reader import GGUFFile
from sp.models.architectures.base import read_config
from sp.models.cache.pages import DEVICE_KV_FORMATS, KV_FORMATS
from sp.models.config import ModelConfig
from sp.models.drafts.dflash_config import DRAFT_ARCHITECTURES
from sp.models.inspect.cards import ANSWER, KEEP, LARGEST_DRAFTER, LENGTHS, card_rows, drafters_for
from sp.models.inspect.memory import Held, held_weights, kv_bytes, state_bytes
from sp.models.rope_keys import rope_facts
from sp.quant import FORMATS

SHOWN = 2
"""Drafters that are reckoned with."""


def describe_model(file: GGUFFile) -> dict[str, Any]:
    """What is known of a file that sp can run.

    Returns
    -------
    dict
        ``family``, ``device`` and ``cards``, each None where the file does not describe a whole model; ``command``,
        None where there is none to give.
    """
    found: dict[str, Any] = {"family": None, "device": None, "cards": None, "command": None}
    architecture = file.metadata.get("general.architecture")
    if isinstance(architecture, str) and architecture in DRAFT_ARCHITECTURES:  # a damaged file may have an array
        return found | {"command": f"sp run --target MODEL.gguf --decode ddtree --draft {_name(file)}"}
    try:
        config = read_config(file)
    except (GGUFError, ModelError):
        return found
    parameters = sum(info.elements for info in file.tensors.values())
    found |= {"family": family(config), "command": command(file, parameters)}
    formats = {name: FORMATS[info.ggml_type] for name, info in file.tensors.items() if info.ggml_type in FORMATS}
    try:
        rows = held_weights(config, formats)
    except (ModelError, KeyError):  # too narrow for the device, or not all there
        return found
    weights = sum(row.nbytes for row in rows)
    drafters = drafters_for(config, parameters)[:SHOWN]
    kv = [name for name in DEVICE_KV_FORMATS if config.head_dim % KV_FORMATS[name].block_size == 0]
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
            "rows": [row for name in kv for row in card_rows(config, weights, drafters, name)],
        },
    }


def family(config: ModelConfig) -> dict[str, Any]:
    """Sizes of a model in the words of its configuration."""
    rope = config.rope
    return {
        "architecture": config.architecture,
        "kind": "hybrid" if config.delta_layers else "dense",
        "layers": config.layers,
        "attention_layers": len(config.attention_layers),
        "delta_layers": len(config.delta_layers),
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "context": config.context,
        "rope": rope_facts(rope) | {"pairing": rope.pairing},
    }


def kernels(row: Held) -> str:
    """How the device multiplies by a format: with kernels of its own, or as the one that it is re-packed to."""
    return ", ".join("native" if target == row.source else f"as {target}" for target in row.targets)


def command(file: GGUFFile, parameters: int) -> str:
    """How to run a model: as a target, or one that is small enough as a drafter."""
    ask = '--prompt-file TEXT.txt --question "..."'
    if parameters <= LARGEST_DRAFTER:
        return f"sp run --target MODEL.gguf --drafter {_name(file)} {ask}"
    return f"sp run --target {_name(file)} --drafter DRAFTER.gguf {ask}"


def _name(file: GGUFFile) -> str:
    return quote(str(Path(file.path)))
