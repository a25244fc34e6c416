"""A model file opened for use: weights, tokenizer, chat template and what the report says about it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from sp.errors import ModelError
from sp.gguf import GGUFFile, Tokenizer, chat_template
from sp.models import Model, load_model

EMBEDDED = {"target": "target.gguf", "drafter": "drafter.gguf"}


@dataclass(frozen=True)
class Loaded:
    """One model of the pair."""

    path: Path
    nbytes: int
    model: Model
    tokenizer: Tokenizer
    template: str | None

    def describe(self) -> dict[str, object]:
        """Facts for the trace."""
        config = self.model.config
        return {
            "file": self.path.name,
            "bytes": self.nbytes,
            "architecture": config.architecture,
            "layers": config.layers,
            "hidden": config.hidden,
            "vocabulary": self.tokenizer.vocab_size,
            "vocabulary_sha256": self.tokenizer.sha256,
        }


def embedded(role: str) -> Path:
    """Path of the embedded `target` or `drafter`."""
    return Path(str(files("sp") / "assets" / EMBEDDED[role]))


def load(path: str | Path) -> Loaded:
    """Open a GGUF file as a model with its tokenizer.

    Raises
    ------
    GGUFError
        The file is damaged or unsupported.
    ModelError
        The file is no complete model, or its vocabulary does not fit its embedding.
    """
    file = GGUFFile.open(path)
    tokenizer = Tokenizer.from_gguf(file)
    model = load_model(file)
    if tokenizer.vocab_size > model.config.vocab:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens but the embedding has "
            f"{model.config.vocab} rows; the file is inconsistent, get another one"
        )
    return Loaded(Path(path), file.nbytes, model, tokenizer, chat_template(file))
