"""Text to encode, as it is written for a vocabulary, and the tokens that end one."""

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
)  # tokens that end a turn or a document whatever eos_token_id says, as in llama.cpp's ``src/llama-vocab.cpp``
CALLS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
"""Where a vocabulary has either pair, ``<|end|>`` ends a message and not the turn."""

Fragment = str | int  # a part of a text without special tokens, or the id of one


def end_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Tokens that end a generation: those the file names, and special ones with a name that says so."""
    special = {t: i for i, (t, k) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)) if k in ADDED}
    named = END_NAMES & special.keys()
    if any(pair <= named for pair in CALLS):
        named -= {"<|end|>"}
    told = {vocabulary.ids[name] for name in ("eos", "eot", "eom") if name in vocabulary.ids}
    return frozenset(told | {special[name] for name in named})


@dataclass(frozen=True)
class Written:
    """What is encoded, and where each byte of the text stands in it. `texts`: the parts between special tokens;
    `spelled`: all of it, special tokens included; `begins`, int64 array (n,), optional: where each byte of the text
    begins in `spelled`; left out where the two are the same."""

    texts: list[str]
    spelled: bytes
    begins: Ints | None = None

    def text_ends(self, ends: Ints) -> Ints:
        """Bytes of the text that begin before each place in `spelled`: a character written with several bytes goes
        to the token that has its first.

        >>> Written(["\u2581a\u2581b"], "\u2581a\u2581b".encode(), np.array([3, 4, 7])).text_ends(np.array([3, 4, 8]))
        array([0, 1, 3])
        """
        assert self.begins is not None, "the text and what is encoded are the same"
        return np.searchsorted(self.begins, ends, side="left")

    def text_places(self, places: Ints) -> Ints:
        """The byte of the text that each of some places in `spelled` belongs to, each byte once.

        >>> Written(["\u2581a\u2581b"], "\u2581a\u2581b".encode(), np.array([3, 4, 7])).text_places(np.array([3, 4, 5]))
        array([0, 1])
        """
        if self.begins is None:
            return places
        return np.unique(np.maximum(np.searchsorted(self.begins, places, side="right") - 1, 0))
