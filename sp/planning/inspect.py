"""inspect_file: describe a model file, and its hindrances to running."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import LlamaFileType

from sp import values
from sp.errors import GGUFError, ModelError, plain
from sp.gguf.reader import GGUFFile
from sp.gguf.template import chat_template
from sp.gguf.vocabulary import CONTROL, Vocabulary
from sp.models.config import ModelConfig
from sp.models.file.metadata_keys import MAX_BLOCKS
from sp.models.file.rope_keys import rope_facts
from sp.models.network.arithmetic import is_eligible
from sp.models.network.cost import active_params
from sp.planning.gpus import ANSWER, KEEP, LENGTHS, REPORTED_LENGTHS, caches, drafters_for, gpu_rows
from sp.planning.memory import (
    DeviceFormat,
    device_weights,
    file_formats,
    kv_bytes,
    layer_matrices,
    stack_bytes,
    state_bytes,
)
from sp.planning.plan import make_plan
from sp.planning.subject import Depth, read_subject, whole
from sp.quant import FORMATS, repacked_tensors

_HASH_STEP = 1 << 22


def inspect_file(path: str | Path, *, sha256: bool = False, depth: Depth = whole) -> dict[str, Any]:
    """Describe a GGUF file, or the model that it is a shard of, as JSON values.

    Sizes are in bytes, unknown values None. ``warnings`` are lines, empty for a file that `sp` runs; ``refused`` is the
    one for which no command accepts the file. ``verdict`` and ``command`` are those of a `ModelPlan` for the longest of
    `REPORTED_LENGTHS`. `sha256` reads the whole file. GGUFError: the file is damaged.
    """
    with GGUFFile.open(path) as file:
        subject = read_subject(file, depth=depth)
        plan = make_plan(subject, None, None, REPORTED_LENGTHS[-1])
        described = describe_model(file, subject.config)
        if described["family"] is not None:
            described["family"]["as_drafter"] = subject.as_drafter()
        return {
            "path": str(file.path),
            "bytes": file.nbytes,
            "shards": len(file.paths),
            "sha256": [_digest(part) for part in file.paths] if sha256 else None,
            "version": file.version,
            **_model(file),
            "tensors": len(file.tensors),
            "tensors_by_type": _by_type(file),
            "repacked": [vars(item) for item in repacked_tensors(file.tensors)],
            "tokenizer": _tokenizer(file, subject.vocabulary),
            "chat_template": _template(file),
            **described,
            "refused": None if subject.refused is None else subject.refused.line,
            "verdict": plan.verdict_facts(),
            "command": plan.command,
            "warnings": [item.line for item in subject.hindrances],
        }


def _model(file: GGUFFile) -> dict[str, Any]:
    architecture = _text(file, "general.architecture")
    file_type = values.whole(file.metadata.get("general.file_type"))
    keys = {
        "layers": "block_count",
        "hidden": "embedding_length",
        "heads": "attention.head_count",
        "kv_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "context": "context_length",
    }
    return {
        "architecture": architecture,
        "name": _text(file, "general.name"),
        "file_type": LlamaFileType(file_type).name if file_type in set(LlamaFileType) else None,
        "parameters": sum(info.elements for info in file.tensors.values()),
        **{name: _count(file, f"{architecture}.{key}") for name, key in keys.items()},
    }


def _text(file: GGUFFile, key: str) -> str | None:
    value = file.metadata.get(key)
    return plain(value) if isinstance(value, str) else None


def _count(file: GGUFFile, key: str) -> int | list[int] | None:
    value = file.metadata.get(key)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and len(value) <= MAX_BLOCKS:
        numbers: list[int] = value.tolist()
        return numbers if len(set(numbers)) > 1 else (numbers[0] if numbers else None)
    return values.whole(file.metadata.get(key))


def _by_type(file: GGUFFile) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for info in file.tensors.values():
        supported = info.ggml_type in FORMATS
        row = rows.setdefault(info.type_name, {"type": info.type_name, "count": 0, "bytes": 0, "supported": supported})
        row["count"] += 1
        row["bytes"] += info.nbytes
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def _tokenizer(file: GGUFFile, vocabulary: Vocabulary | None) -> dict[str, Any] | None:
    model = _text(file, "tokenizer.ggml.model")
    if model is None:
        return None
    facts: dict[str, Any] = {
        "model": model,
        "pre": _text(file, "tokenizer.ggml.pre"),
        "vocab": _length(file, "tokenizer.ggml.tokens"),
        "merges": _length(file, "tokenizer.ggml.merges"),
        "specials": None,
        "eos": values.whole(file.metadata.get("tokenizer.ggml.eos_token_id")),
        "add_bos": None,
        "sha256": None,
    }
    if vocabulary is not None:
        facts |= {
            "specials": vocabulary.types.count(CONTROL),
            "eos": vocabulary.ids.get("eos"),
            "add_bos": vocabulary.add_bos,  # as encoding does; the key alone does not decide it
            "sha256": vocabulary.sha256,
        }
    return facts


def _length(file: GGUFFile, key: str) -> int | None:
    value = file.metadata.get(key)
    return len(value) if isinstance(value, list | np.ndarray) else None


def _template(file: GGUFFile) -> dict[str, Any]:
    absent = {"present": False, "sha256": None, "chars": None, "first_line": None}
    try:
        template = chat_template(file)
    except GGUFError:
        return absent
    if template is None:
        return absent
    return {
        "present": True,
        "sha256": hashlib.sha256(template.encode()).hexdigest(),
        "chars": len(template),
        "first_line": plain(template.lstrip().split("\n", 1)[0], 100),
    }


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_HASH_STEP):
                digest.update(piece)
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read ({error.strerror}); check the disk") from None
    return digest.hexdigest()


MOST_DRAFTERS = 2  # drafters in the table of memory


def describe_model(file: GGUFFile, config: ModelConfig | None) -> dict[str, Any]:
    """Describe a file of a configuration, if it has one. Returns ``family``, ``device`` and ``cards``, each
    None where the file does not describe a whole model."""
    sections: dict[str, Any] = {"family": None, "device": None, "cards": None}
    if config is None:
        return sections
    sections["family"] = family(config)
    formats = file_formats(file)
    try:
        rows = device_weights(config, formats)
    except (ModelError, KeyError):  # too narrow for the device, or tensors are missing
        return sections
    weights, stacks = sum(row.nbytes for row in rows), stack_bytes(config, formats)
    drafters = drafters_for(config, sum(info.elements for info in file.tensors.values()))[:MOST_DRAFTERS]
    kv = caches(config)
    return sections | {
        "device": {
            "bytes": weights,
            "formats": [asdict(row) | {"kernels": kernels(row)} for row in rows],
            "state_bytes": state_bytes(config),
            "kv_bytes": {name: {str(n): kv_bytes(config, n, name) for n in LENGTHS} for name in kv},
        },
        "cards": {
            "keep_ratio": KEEP,
            "answer_tokens": ANSWER,
            "rows": [row for name in kv for row in gpu_rows(config, weights, drafters, name, stacks=stacks)],
        },
    }


def family(config: ModelConfig) -> dict[str, Any]:
    """Return the sizes of a model by the names of its configuration."""
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
        "global_heads": None if config.global_heads is None else asdict(config.global_heads),
        "context": config.context,
        "experts": experts(config),
        "eight_bits": eight_bits(config),
        "rope": rope_facts(rope) | {"pairing": rope.pairing},
        "windows": windows(config),
    }


def windows(config: ModelConfig) -> dict[str, Any] | None:
    """Return the tokens of the sliding window, the number of layers that have it, and their RoPE base; None without."""
    if not config.windowed_layers:
        return None
    first = config.windowed_layers[0]
    return {
        "tokens": config.window_of(first),
        "layers": len(config.windowed_layers),
        "rope_base": config.rope_of(first).base,
    }


def eight_bits(config: ModelConfig) -> dict[str, int]:
    """Count the matrices of layers that `--precision` can multiply in int8 or fp8, and all of them without experts."""
    matrices = layer_matrices(config)
    return {"weights": sum(is_eligible(tensor.name, tensor.shape) for tensor in matrices), "matrices": len(matrices)}


def experts(config: ModelConfig) -> dict[str, Any] | None:
    """Return the sizes of a mixture of experts, and the parameters that are active for a token."""
    if config.experts is None:
        return None
    return asdict(config.experts) | {"active_parameters": active_params(config)}


def kernels(row: DeviceFormat) -> str:
    """Describe the kernels of a format on the device: native, or those of the format that it is re-packed to."""
    return ", ".join("native" if target == row.source else f"as {target}" for target in row.targets)
