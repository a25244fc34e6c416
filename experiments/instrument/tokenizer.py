"""The byte-level BPE of both models as `vocabulary.py` trains it: its parts, and a cached encoder of ASCII text.

`Encoder` splits text with the ASCII form of the tokenizer's regex and looks every pre-token up in a cache (BPE never
merges across pre-tokens).
"""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import Tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of `qwen2`."""
PRETOKEN = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Encoder:
    """Cached encoder of ASCII text; equal to the real tokenizer (tested)."""

    def __init__(self, source: Path | str | Tokenizer) -> None:
        self.tokenizer = source if isinstance(source, Tokenizer) else Tokenizer.from_file(str(source))
        self.cache: dict[str, list[int]] = {}
        self.end_of_text, self.start, self.end = (self.tokenizer.token_to_id(s) for s in SPECIALS)
        self.size = self.tokenizer.get_vocab_size()

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        try:
            for piece in map(self.cache.__getitem__, PRETOKEN.findall(text)):
                ids += piece
        except KeyError:  # a pre-token that was not met before
            return self.marked(text, ())[0]
        return ids

    def marked(self, text: str, marks: tuple[int, ...] | list[int]) -> tuple[list[int], list[int]]:
        """Tokens of ``text`` and, for every character offset in ``marks`` (a pre-token start), its token index."""
        ids: list[int] = []
        cache = self.cache
        at: dict[int, int] = {}
        wanted = set(marks)
        for m in PRETOKEN.finditer(text):
            s = m.start()
            if s in wanted:
                at[s] = len(ids)
            piece = m.group()
            got = cache.get(piece)
            if got is None:
                got = self.tokenizer.encode(piece, add_special_tokens=False).ids
                if len(cache) < 500_000:
                    cache[piece] = got
            ids += got
        return ids, [at[m] for m in marks]

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))
