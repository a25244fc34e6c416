"""inspect_file: what is in a model file, and what keeps it from running."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import LlamaFileType

from sp import values
from sp.errors import GGUFError, plain
from sp.gguf.reader import GGUFFile
from sp.gguf.template import chat_template
from sp.gguf.vocabulary import CONTROL, Vocabulary
from sp.models.inspect.family import describe_model
from sp.models.inspect.plan import make_plan
from sp.models.inspect.subject import Depth, read_subject, whole
from sp.models.inspect.ways import SPOKEN
from sp.models.metadata_keys import MAX_BLOCKS
from sp.quant import FORMATS, repacked_tensors

_HASH_STEP = 1 << 22


def inspect_file(path: str | Path, *, sha256: bool = False, depth: Depth = whole) -> dict[str, Any]:
    """Describe a GGUF file.

    Parameters
    ----------
    path : str or Path
        A file, or any shard of a sharded model.
    sha256 : bool
        Also hash every file, which reads all of it.
    depth : callable
        Of a model that scores for another, see `read_subject`.

    Returns
    -------
    dict
        JSON-able. Sizes are in bytes; what the file does not say is None. ``warnings`` is a list of one-line
        strings, empty for a file that `sp` can run. ``refused`` is the one for which no command takes the file, or
        None. What `describe_model` tells is in it, and the ``verdict`` and ``command`` of a `Plan` for the longest of
        `SPOKEN`.

    Raises
    ------
    GGUFError
        When the file is not a sound GGUF file.
    """
    with GGUFFile.open(path) as file:
        subject = read_subject(file, depth=depth)
        plan = make_plan(subject, None, None, SPOKEN[-1])
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
            "repacked": [vars(each) for each in repacked_tensors(file.tensors)],
            "tokenizer": _tokenizer(file, subject.vocabulary),
            "chat_template": _template(file),
            **described,
            "refused": None if subject.refused is None else subject.refused.line,
            "verdict": plan.told_verdict(),
            "command": plan.command,
            "warnings": [each.line for each in subject.hindrances],
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
    """An integer, or one for every layer."""
    value = file.metadata.get(key)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and len(value) <= MAX_BLOCKS:
        numbers: list[int] = value.tolist()
        return numbers if len(set(numbers)) > 1 else (numbers[0] if numbers else None)
    return values.whole(file.metadata.get(key))


def _by_type(file: GGUFFile) -> list[dict[str, Any]]:
    """One row a tensor type, largest first."""
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
    found: dict[str, Any] = {
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
        found |= {
            "specials": vocabulary.types.count(CONTROL),
            "eos": vocabulary.ids.get("eos"),
            "add_bos": vocabulary.add_bos,  # as encoding does, which the key alone does not tell
            "sha256": vocabulary.sha256,
        }
    return found


def _length(file: GGUFFile, key: str) -> int | None:
    value = file.metadata.get(key)
    return len(value) if isinstance(value, list | np.ndarray) else None


def _template(file: GGUFFile) -> dict[str, Any]:
    """Facts of the chat template."""
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
