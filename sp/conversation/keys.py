"""The key of what was read: what two prompts must share before their tokens are compared."""

from __future__ import annotations

from dataclasses import fields
from hashlib import blake2b

from sp.conversation.options import ConversationOptions
from sp.pipeline import Loaded, Pipeline, RunOptions

FREE = ("decode", "max_new_tokens")
"""Options that leave no trace in what is remembered."""


def identity(pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> bytes:
    """A hash over model files, devices, scaling of RoPE, and options; tokens are compared one by one."""
    parts = [_identity(pipeline.target), _identity(pipeline.drafter)]
    parts += [f"{each.name}={getattr(options, each.name)!r}" for each in fields(options) if each.name not in FREE]
    return blake2b("\n".join([*parts, repr(memory)]).encode(), digest_size=16).digest()


def _identity(loaded: Loaded | None) -> str:
    if loaded is None:
        return "none"
    model = loaded.model
    rope = f"{model.config.rope!r} {loaded.asked}"  # that of long prompts hangs on whether one was asked for
    return f"{loaded.path.resolve()} {loaded.nbytes} {loaded.tokenizer.sha256} {model.device} {rope}"
