"""A prompt: text with named byte spans, its tokens in one vocabulary, and scores carried to those of another."""

from sp.prompt.prompt import DOCUMENT_MARK, Prompt, TokenisedPrompt
from sp.prompt.spans import Span, SpanKind, merge_spans, transfer_scores

__all__ = [
    "DOCUMENT_MARK",
    "Prompt",
    "Span",
    "SpanKind",
    "TokenisedPrompt",
    "merge_spans",
    "transfer_scores",
]
