"""What keeps a model file from running, or may surprise whoever runs it: read off its header, one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sp import values
from sp.errors import GGUFError, ModelError
from sp.gguf import GGUFFile
from sp.gguf.vocabulary import Vocabulary
from sp.models.architectures.base import ARCHITECTURES, find_architecture, read_config
from sp.models.drafts.dflash_config import DRAFT_ARCHITECTURES, gguf_keys
from sp.models.drafts.dflash_refusals import refuse_later
from sp.models.expected import missing_tensors
from sp.models.metadata_keys import Keys
from sp.models.refusals import refuse_changed, refuse_prediction, unsupported
from sp.models.trunk import Trunk
from sp.models.weights import HeaderStore
from sp.quant import FORMATS

KNOWN_TYPE = 100
"""Characters of a name in a line."""


@dataclass(frozen=True)
class Hindrance:
    """One thing that stands in the way.

    Attributes
    ----------
    line : str
        What it is and what to do, without the file's name.
    stops : bool
        Whether the model does not run for it.
    of_format : bool
        Whether it lies in how numbers are written, so that another file of the same model may run.
    usable : bool
        Whether the file is of use all the same, as a draft is beside its target.
    """

    line: str
    stops: bool = True
    of_format: bool = False
    usable: bool = False


def is_draft(file: GGUFFile) -> bool:
    """Whether a file says that it guesses answers ahead, and so is no model by itself."""
    return values.text(file.metadata.get("general.architecture")) in DRAFT_ARCHITECTURES


def find_hindrances(file: GGUFFile) -> Iterator[Hindrance]:
    """What of tensors and keys of a model stands in the way; the first of what stops it, and of formats all."""
    unknown = Counter(info.type_name for info in file.tensors.values() if info.ggml_type not in FORMATS)
    for name, count in unknown.items():
        example = next(tensor for tensor, info in file.tensors.items() if info.type_name == name)
        example = values.shown(example, KNOWN_TYPE).strip("'")
        yield Hindrance(f"{count} tensor(s) of type {name}, which sp cannot decode, e.g. {example}", of_format=True)
    if not file.tensors:
        yield Hindrance("no tensors: a vocabulary only, or metadata only")
        return
    architecture = values.text(file.metadata.get("general.architecture"))
    try:
        refuse_prediction(str(file.path), file.tensors)
        if architecture in DRAFT_ARCHITECTURES:
            refuse_later(gguf_keys(file), file.tensors)
        if architecture is None or architecture not in ARCHITECTURES:
            line = unsupported(file.metadata.get("general.architecture"), ARCHITECTURES)
            yield Hindrance(line, usable=architecture in DRAFT_ARCHITECTURES)
            return
        refuse_changed(Keys(architecture, file.metadata, str(file.path)), find_architecture(architecture).honours)
        yield from _incomplete(file, architecture)
    except (GGUFError, ModelError) as error:
        yield Hindrance(without_path(error, file))


def _incomplete(file: GGUFFile, architecture: str) -> Iterator[Hindrance]:
    """Keys and tensors that are not there, and blocks that are left out."""
    for key, what in (
        ("context_length", "the longest prompt is unknown"), ("block_count", "this is no complete model")
    ):  # fmt: skip
        if values.whole(file.metadata.get(f"{architecture}.{key}")) is None:
            yield Hindrance(f"key '{architecture}.{key}' is absent or no whole number, so {what}")
            return
    blocks = values.whole(file.metadata.get(f"{architecture}.block_count")) or 0
    extra = values.whole(file.metadata.get(f"{architecture}.nextn_predict_layers")) or 0
    if extra > 0:
        line = f"{extra} multi-token-prediction block(s) from blk.{blocks - extra} on will be skipped"
        yield Hindrance(line, stops=False)
    if missing := missing_tensors(architecture, file):
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        yield Hindrance(f"{len(missing)} expected tensors are missing: {shown}")
        return
    config = read_config(file)
    store = HeaderStore(file, config)
    Trunk.take(store)
    store.finish(find_architecture(architecture).config_tensors)


def of_vocabulary(file: GGUFFile, vocabulary: Vocabulary | None, problem: str | None) -> Iterator[Hindrance]:
    """The same of the vocabulary; `problem` is why there is none."""
    if is_draft(file):  # words and template are its target's
        return
    if vocabulary is None:
        yield Hindrance(f"no usable tokenizer: {problem}")
        return
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape[0] != (tokens := len(vocabulary.tokens)):
        line = f"vocabulary of {tokens} tokens but {embedding.shape[0]} embedding rows"
        yield Hindrance(line, stops=tokens > embedding.shape[0])
    if "eos" not in vocabulary.ids:
        yield Hindrance("no end-of-sequence token id: an answer may not know where to stop", stops=False)


def without_path(error: Exception, file: GGUFFile) -> str:
    """What an error says of a file, without its name."""
    return str(error).removeprefix(f"{file.path}: ")
