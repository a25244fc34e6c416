"""Vocabularies whose tokens llama.cpp was asked for: that of tiny-bpe.gguf with every pattern, and synthetic ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_bpe import METADATA

from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata

FILE = Path(__file__).parent / "llama-cpp.json"
LLAMA = {"general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 64}
"""What llama.cpp needs to know of a file of which only the vocabulary is asked."""
DISTINCT = list({record: name for name, record in reversed(PRE_TOKENIZERS.items())}.values())
"""A name of every record."""


def cases() -> dict[str, dict[str, Any]]:
    """Tokenizer keys by what they are called in the file."""
    found = {name: {**METADATA, "tokenizer.ggml.pre": name, "tokenizer.ggml.bos_token_id": 0} for name in DISTINCT}
    found["synthetic llama-bpe"] = tokenizer_metadata("llama-bpe", 2000, 2048)
    found["synthetic llama"] = tokenizer_metadata("llama", 1500, 1500)
    bare = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    found["synthetic llama, bare"] = found["synthetic llama"] | bare
    return found
