"""A prompt: text with named byte spans, its tokens in one vocabulary, and scores carried to those of another."""

from sp.prompt.prompt import DOCUMENT_MARK, Prompt, TokenisedPrompt
from sp.prompt.spans import Span, SpanKind, Transfer, merge_spans, transfer_scores

__all__ = [
    "DOCUMENT_MARK", "Prompt", "Span", "SpanKind", "TokenisedPrompt", "Transfer", "merge_spans", "transfer_scores",
]  # fmt: skip
