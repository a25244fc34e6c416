"""Selectors that take the best units a budget has room for: chunks, tokens, sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.arrays import Ints
from sp.config import Tokens
from sp.prompt.spans import chunk_bounds
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import Constrained, best_first, check_least, sentence_bounds, unit_means


@register_selector("top_chunks")
@dataclass(frozen=True)
class TopChunks(Constrained):
    """Chunks in order of their mean score.

    This is the rule of SpecPrefill (arXiv 2502.02789), which has no constraints: `neighbours=0 sink=0 tail=0`.

    Parameters
    ----------
    chunk_size : int, optional
        Tokens in a chunk; as the scorer tells them apart if left out, see `Importance.fineness` (most: 32, as in
        SpecPrefill).
    """

    chunk_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size is not None:
            check_least(self, 1, "chunk_size")

    def chunks(self, request: SelectionRequest) -> Ints:
        """Bounds of the chunks of a prompt, (chunks + 1,)."""
        return chunk_bounds(len(request.scores), self.chunk_size or request.fineness)

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks by rank; see `Constrained` for what else is kept."""
        bounds = self.chunks(request)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))


@register_selector("token_budget")
@dataclass(frozen=True)
class TokenBudget(TopChunks):
    """Chunks in order of their mean score, as far as `tokens` go.

    What a question needs of a text does not grow with the text, so results at different lengths compare better
    at equal tokens than at equal ratios (SpecPC, arXiv 2506.08373, reports 1,024 to 3,072). What is protected comes on
    top of them. The keep ratio stays a ceiling: raise it where it is the smaller of the two.

    Parameters
    ----------
    tokens : int
        Tokens to keep of those that may be left out, sink and tail among them.
    """

    tokens: Tokens = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "tokens")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks by rank, at most `tokens` tokens and what is protected."""
        bounds = self.chunks(request)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores), most=self.tokens)


@register_selector("top_tokens")
@dataclass(frozen=True)
class TopTokens(Constrained):
    """Tokens in order of their own score: SpecPrefill without chunks (arXiv 2502.02789), GemFilter (arXiv 2409.17422).

    Single tokens carry little text, so this rule lives from scores that were pooled along the prompt, from
    neighbours (SpecPC, arXiv 2506.08373, takes 64) or from a shortest run.
    """

    neighbours: int | Literal["by_length"] = 0

    def select(self, request: SelectionRequest) -> Selection:
        """Tokens by rank; see `Constrained` for what else is kept."""
        bounds = chunk_bounds(len(request.scores), 1)
        return self.take(request, bounds, request.scores, best_first(request.scores))


@register_selector("sentence")
@dataclass(frozen=True)
class Sentence(Constrained):
    """Sentences in order of their mean score, so that kept text is cut where a reader would cut it.

    Compression by phrases is due to Selective Context (arXiv 2304.12102), there by self-information.

    Parameters
    ----------
    longest : int
        Sentences of more tokens are cut into equal parts; text without sentences consists of such parts.
    """

    longest: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "longest")

    def select(self, request: SelectionRequest) -> Selection:
        """Sentences by rank; see `Constrained` for what else is kept."""
        bounds = sentence_bounds(request, self.longest)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))
