"""Text to encode and tokens written down: special tokens that a text spells, and the buffers ids go to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

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


class SpecialTokens:
    """Finds the special tokens of a vocabulary in text; the longest where several begin."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pairs = enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        special = {token: index for index, (token, kind) in pairs if kind in ADDED and token}
        # All text between two special tokens becomes one token that is none of them.
        self._text = len(vocabulary.tokens)
        self._finder = Backend(models.WordLevel({**special, "": self._text}, unk_token=""))
        self._finder.add_tokens([AddedToken(token, normalized=False) for token in special])
        self._any = bool(special)

    def split(self, raw: bytes, plain: Sequence[tuple[int, int]]) -> list[Fragment]:
        """Fragments of a text, cut at the special tokens that lie wholly between plain parts (byte ranges)."""
        fragments: list[Fragment] = []
        begin = 0  # of the text since the last special token
        gaps = zip([0, *(end for _, end in plain)], [*(start for start, _ in plain), len(raw)], strict=True)
        for start, end in gaps:
            for token, low, high in self._find(raw[start:end].decode()):
                fragments += [raw[begin : start + low].decode(), token]
                begin = start + high
        return [part for part in (*fragments, raw[begin:].decode()) if part != ""]

    def _find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Special tokens of a text and the bytes they take."""
        if not self._any:
            return
        found = self._finder.encode(text, add_special_tokens=False)
        at = 0
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            size = len(text[start:end].encode())
            if token != self._text:
                yield token, at, at + size
            at += size


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
        return ends if self.begins is None else np.searchsorted(self.begins, ends, side="left")

    def text_places(self, places: Ints) -> Ints:
        """The byte of the text that each of some places in `spelled` belongs to, each byte once.

        >>> Written(["\u2581a\u2581b"], "\u2581a\u2581b".encode(), np.array([3, 4, 7])).text_places(np.array([3, 4, 5]))
        array([0, 1])
        """
        if self.begins is None:
            return places
        return np.unique(np.maximum(np.searchsorted(self.begins, places, side="right") - 1, 0))
