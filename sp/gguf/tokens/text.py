"""Text as a vocabulary normalizes it, and the tokens that end a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Ints
from sp.gguf.vocabulary import ADDED, Vocabulary

END_NAMES = frozenset(
    {
        *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"),
        *("<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<eos>", "<EOT>"),
        *("_<EOT>", "[EOT]", "[EOS]", "</s>", "<｜end▁of▁sentence｜>", "<|tool_response>", "[e~["),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)  # tokens that end a turn or a document in addition to eos_token_id, as in llama.cpp's ``src/llama-vocab.cpp``
CALLS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
"""Pairs of tokens; in a vocabulary that has either pair, ``<|end|>`` ends a message and not the turn."""

Fragment = str | int  # a part of a text without special tokens, or the id of one


def end_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Return the tokens that end a generation: those the file names, and special ones whose name says so."""
    special = {t: i for i, (t, k) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)) if k in ADDED}
    named = END_NAMES & special.keys()
    if any(pair <= named for pair in CALLS):
        named -= {"<|end|>"}
    ids = {vocabulary.ids[name] for name in ("eos", "eot", "eom") if name in vocabulary.ids}
    return frozenset(ids | {special[name] for name in named})


@dataclass(frozen=True)
class NormalizedText:
    """Text as the vocabulary spells it, and the position of each byte of the original in it. `texts`: the parts between
    special tokens; `spelled`: all of it, special tokens included; `begins`, int64 array (n,), optional: the offset in
    `spelled` of each byte of the text; None if the two are equal."""

    texts: list[str]
    spelled: bytes
    begins: Ints | None = None

    def text_ends(self, ends: Ints) -> Ints:
        """Count the bytes of the text that begin before each offset in `spelled`: a character of several bytes belongs
        to the token with its first byte.

        >>> text = NormalizedText(["\u2581a\u2581b"], "\u2581a\u2581b".encode(), np.array([3, 4, 7]))
        >>> text.text_ends(np.array([3, 4, 8]))
        array([0, 1, 3])
        """
        assert self.begins is not None, "the text is unchanged"
        return np.searchsorted(self.begins, ends, side="left")

    def text_places(self, places: Ints) -> Ints:
        """Return the offsets of the bytes of the text to which some offsets in `spelled` belong, without repetition.

        >>> text = NormalizedText(["\u2581a\u2581b"], "\u2581a\u2581b".encode(), np.array([3, 4, 7]))
        >>> text.text_places(np.array([3, 4, 5]))
        array([0, 1])
        """
        if self.begins is None:
            return places
        return np.unique(np.maximum(np.searchsorted(self.begins, places, side="right") - 1, 0))
