"""GGUF files: a bounded reader, a streaming writer, and the text side of a file (tokenizer, chat template)."""

from __future__ import annotations

from sp.gguf.header import TensorInfo, Value
from sp.gguf.reader import GGUFFile
from sp.gguf.template import ChatTemplate, chat_template, render_chat
from sp.gguf.tokenizer import Encoding, Tokenizer
from sp.gguf.writer import GGUFWriter

__all__ = [
    "ChatTemplate", "Encoding", "GGUFFile", "GGUFWriter", "TensorInfo", "Tokenizer", "Value", "chat_template",
    "render_chat",
]  # fmt: skip
