"""inspect_file: what is in a model file, and what keeps it from running."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import LlamaFileType

from sp.errors import GGUFError, ModelError
from sp.gguf import values
from sp.gguf.metadata import plain
from sp.gguf.reader import GGUFFile
from sp.gguf.template import chat_template, check_template
from sp.gguf.vocabulary import CONTROL, Vocabulary, read_vocabulary
from sp.models.architectures.base import ARCHITECTURES, find_architecture, read_config
from sp.models.drafts.dflash_config import DRAFT_ARCHITECTURES, gguf_keys
from sp.models.drafts.dflash_refusals import refuse_later
from sp.models.expected import missing_tensors
from sp.models.inspect.family import describe_model
from sp.models.metadata_keys import MAX_BLOCKS, Keys
from sp.models.refusals import refuse_changed, refuse_prediction, unsupported
from sp.quant import FORMATS, repacked_tensors

_HASH_STEP = 1 << 22


def inspect_file(path: str | Path, *, sha256: bool = False) -> dict[str, Any]:
    """Describe a GGUF file.

    Parameters
    ----------
    path : str or Path
        A file, or any shard of a sharded model.
    sha256 : bool
        Also hash every file, which reads all of it.

    Returns
    -------
    dict
        JSON-able. Sizes are in bytes; what the file does not say is None. ``warnings`` is a list of one-line
        strings, empty for a file that `sp` can run. What `describe_model` tells is in it.

    Raises
    ------
    GGUFError
        When the file is not a sound GGUF file.
    """
    with GGUFFile.open(path) as file:
        template, warnings = _template(file)
        vocabulary, problem = _vocabulary(file)
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
            "tokenizer": _tokenizer(file, vocabulary),
            "chat_template": template,
            **describe_model(file),
            "warnings": [*_warnings(file), *_vocabulary_warnings(file, vocabulary, problem), *warnings],
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


def _vocabulary(file: GGUFFile) -> tuple[Vocabulary | None, str | None]:
    """The vocabulary, or why there is none."""
    try:
        return read_vocabulary(file.metadata, str(file.path)), None
    except GGUFError as error:
        return None, str(error).removeprefix(f"{file.path}: ")


def _is_draft(file: GGUFFile) -> bool:
    return _text(file, "general.architecture") in DRAFT_ARCHITECTURES


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


def _template(file: GGUFFile) -> tuple[dict[str, Any], list[str]]:
    """Facts of the chat template, and warnings."""
    missed = [] if _is_draft(file) else ["no chat template: give one, or a prompt as plain text"]
    absent = {"present": False, "sha256": None, "chars": None, "first_line": None}
    try:
        template = chat_template(file)
        if template is None:
            return absent, missed
    except GGUFError as error:
        return absent, [str(error).removeprefix(f"{file.path}: ")]
    first_line = template.lstrip().split("\n", 1)[0]
    facts = {
        "present": True,
        "sha256": hashlib.sha256(template.encode()).hexdigest(),
        "chars": len(template),
        "first_line": plain(first_line, 100),
    }
    try:
        check_template(template)
    except GGUFError as error:
        return facts, [str(error)]
    return facts, []


def _warnings(file: GGUFFile) -> Iterator[str]:
    """What keeps the model from running, or may surprise."""
    architecture = _text(file, "general.architecture")
    for row in (row for row in _by_type(file) if not row["supported"]):
        example = next(name for name, info in file.tensors.items() if info.type_name == row["type"])
        yield f"{row['count']} tensor(s) of type {row['type']}, which sp cannot decode, e.g. {example}"
    if not file.tensors:
        yield "no tensors: a vocabulary only, or metadata only"
        return
    try:
        refuse_prediction(str(file.path), file.tensors)
        if architecture in DRAFT_ARCHITECTURES:
            refuse_later(gguf_keys(file), file.tensors)
        if architecture is None or architecture not in ARCHITECTURES:
            yield unsupported(architecture, ARCHITECTURES)
            return
        record = find_architecture(architecture)
        refuse_changed(Keys(architecture, file.metadata, str(file.path)), record.honours)
    except ModelError as error:
        yield str(error).removeprefix(f"{file.path}: ")
        return
    if values.whole(file.metadata.get(f"{architecture}.context_length")) is None:
        yield f"key '{architecture}.context_length' is absent or no whole number, so the longest prompt is unknown"
        return
    blocks = values.whole(file.metadata.get(f"{architecture}.block_count"))
    if blocks is None:
        yield f"key '{architecture}.block_count' is absent or no whole number, so this is no complete model"
        return
    extra = values.whole(file.metadata.get(f"{architecture}.nextn_predict_layers")) or 0
    if extra > 0:
        first = f"blk.{blocks - extra}"
        yield f"{extra} multi-token-prediction block(s) from {first} on will be skipped"
    try:
        missing = missing_tensors(architecture, file)
    except ModelError as error:
        yield str(error).removeprefix(f"{file.path}: ")
        return
    if missing:
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        yield f"{len(missing)} expected tensors are missing: {shown}"
        return
    try:
        read_config(file)
    except (GGUFError, ModelError) as error:
        yield str(error).removeprefix(f"{file.path}: ")


def _vocabulary_warnings(file: GGUFFile, vocabulary: Vocabulary | None, problem: str | None) -> Iterator[str]:
    if _is_draft(file):  # words and template are its target's
        return
    if vocabulary is None:
        yield f"no usable tokenizer: {problem}"
        return
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape[0] != len(vocabulary.tokens):
        yield f"vocabulary of {len(vocabulary.tokens)} tokens but {embedding.shape[0]} embedding rows"
    if "eos" not in vocabulary.ids:
        yield "no end-of-sequence token id: an answer may not know where to stop"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_HASH_STEP):
                digest.update(piece)
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read ({error.strerror}); check the disk") from None
    return digest.hexdigest()
