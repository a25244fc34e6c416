"""A model file opened for use: weights, tokenizer, chat template and what the report says about it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from sp.errors import ModelError
from sp.gguf import GGUFFile, Tokenizer, chat_template
from sp.models import Model, ModelConfig, load_model

EMBEDDED = {"target": "target.gguf", "drafter": "drafter.gguf"}
LONGEST_DRAFT = 1 << 20


@dataclass(frozen=True)
class Loaded:
    """One model of the pair.

    Parameters
    ----------
    file : GGUFFile
        Stays open: weights that stay packed are views of it.
    model : Model
    tokenizer : Tokenizer
    template : str or None
        Chat template, if the file has one.
    """

    file: GGUFFile
    model: Model
    tokenizer: Tokenizer
    template: str | None

    @property
    def path(self) -> Path:
        """Where the model came from."""
        return self.file.path

    def describe(self) -> dict[str, object]:
        """Facts for the trace."""
        config = self.model.config
        return {
            "file": self.path.name,
            "bytes": self.file.nbytes,
            "architecture": config.architecture,
            "layers": config.layers,
            "hidden": config.hidden,
            "vocabulary": self.tokenizer.vocab_size,
            "vocabulary_sha256": self.tokenizer.sha256,
        }


def embedded(role: str) -> Path:
    """Path of the embedded `target` or `drafter`."""
    return Path(str(files("sp") / "assets" / EMBEDDED[role]))


def load(path: str | Path, *, extrapolate: bool = False) -> Loaded:
    """Open a GGUF file as a model with its tokenizer.

    Parameters
    ----------
    path : path
        The file, or the first of its shards.
    extrapolate : bool
        Allow positions beyond the file's context, as a drafter needs whose context is shorter than the
        target's: its scores only have to rank, and are known to survive plain extrapolation of RoPE.

    Raises
    ------
    GGUFError
        The file is damaged or unsupported.
    ModelError
        The file is no complete model, or its vocabulary does not fit its embedding.
    """
    file = GGUFFile.open(path)
    tokenizer = Tokenizer.from_gguf(file)
    context = ModelConfig.from_gguf(file).context
    model = load_model(file, context=max(context, LONGEST_DRAFT) if extrapolate else None)
    if tokenizer.vocab_size > model.config.vocab:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens but the embedding has "
            f"{model.config.vocab} rows; the file is inconsistent, get another one"
        )
    return Loaded(file, model, tokenizer, chat_template(file))
