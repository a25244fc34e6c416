"""Two byte-level BPE tokenizers trained on different mixes, so that the drafter's and the target's vocabularies differ.

``python tokenizer.py DIR`` reads ``DIR/bank.json`` and writes ``DIR/drafter.json`` (2048 entries, regex of
``qwen2``) and ``DIR/target.json`` (2560, ``qwen35``). :class:`Encoder` is the fast path: it splits ASCII text with the
ASCII form of the same regex and looks every pre-token up in a cache (BPE never merges across pre-tokens).
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

from text import KINDS, LINE_NEEDLES, NEEDLES, NOISE, PREFIXES, QUESTIONS, VT_PREFIX, VT_QUESTION, Source
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
REGEX = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
}
PRETOKEN = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCABULARY = {"drafter": ("qwen2", 2048), "target": ("qwen35", 2560)}


def phrases(seed: int, count: int) -> str:
    """Needle sentences, questions and prefixes, so that their words are tokens."""
    rng = random.Random(seed)
    source = Source(rng)
    styles = ("adjective-noun", "word", "pseudo", "two-words", "name", "uuid")
    out = []
    for _ in range(count):
        kind = rng.choice(KINDS)
        slots = {"key": source.key(rng.choice(styles[:-1] if rng.random() < 0.9 else styles)), "kind": kind, "count": 5}
        slots["value"] = source.value(kind if rng.random() < 0.3 else "number")
        template = rng.choice(NEEDLES + LINE_NEEDLES + QUESTIONS + PREFIXES + [VT_QUESTION, VT_PREFIX])
        out.append(template.format(**slots))
    return "\n".join(out) + "\n"


def train(bank: dict[str, str], role: str) -> Tokenizer:
    pre, size = VOCABULARY[role]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEX[pre]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    g, p, c = bank["grammar"], bank["prose"], bank["code"]
    if role == "drafter":
        mix = [g[:1_200_000], p[:400_000], c[:200_000], phrases(11, 8000), NOISE * 200]
    else:
        mix = [g[1_200_000:2_000_000], p[400_000:1_000_000], c[200_000:900_000], phrases(12, 6000), NOISE * 100]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = [line for text in mix for line in text.splitlines(keepends=True)] + ["assistant\n", "user\n"] * 20_000
    trainer.vocab_size = size - len(SPECIALS)
    tok.train_from_iterator(lines, trainer)
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tok


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


def main(out: Path) -> None:
    bank = json.loads((out / "bank.json").read_text())["train"]
    for role in VOCABULARY:
        tok = train(bank, role)
        tok.save(str(out / f"{role}.json"))
        for s in (
            "The special magic number for quiet-lantern is: 8301947.",
            "assistant\n",
            " 3f2a1b4c-99de",
            " tundra-gopher",
        ):
            print(role, tok.get_vocab_size(), tok.encode(s).tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
