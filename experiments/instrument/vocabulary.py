"""The tokenizers of the instrument: ``python vocabulary.py DATA`` reads ``DATA/bank.json`` and writes one a role.

Trained on the bank, the stories in training phrases and the names of the closed world, on another mix for each role.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from compose import NAMES, drawer
from filler import own_filler
from tokenizer import REGEX, SPECIALS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = {"drafter": ("qwen2", 4096), "target": ("qwen35", 5120)}


def stories(seed: int, characters: int) -> str:
    """Passages, questions, answers and filler of every kind of story, in about equal parts."""
    rng, out = random.Random(seed), []
    for name in NAMES:
        draw, filler, size = drawer(name), own_filler(name), 0
        stream = filler(rng) if filler else None
        while size < characters // len(NAMES):
            story = draw(rng, 12)
            lines = [*story.passages, *(f"{q.text}\n{', '.join(q.answers)}" for q in story.questions)]
            lines += [next(stream).text for _ in range(4)] if stream else []
            out += lines
            size += sum(map(len, lines))
    return "\n".join(out) + "\n"


def train(bank: dict[str, str], role: str) -> Tokenizer:
    """A byte-level BPE of the role's size."""
    pre, size = VOCABULARY[role]
    split = pre_tokenizers.Split(Regex(REGEX[pre]), "isolated")
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    g, p, c = bank["grammar"], bank["prose"], bank["code"]
    if role == "drafter":
        mix = [g[:900_000], p[:400_000], c[:200_000], stories(11, 2_500_000)]
    else:
        mix = [g[900_000:1_600_000], p[400_000:1_000_000], c[200_000:700_000], stories(12, 2_000_000)]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS),
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = [line for text in mix for line in text.splitlines(keepends=True)] + ["assistant\n", "user\n"] * 20_000
    tok.train_from_iterator(lines, trainer)
    tok.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIALS])
    return tok


def main(data: Path) -> None:
    """Train and save both."""
    bank = json.loads((data / "bank.json").read_text())["train"]
    for role in VOCABULARY:
        tok = train(bank, role)
        tok.save(str(data / f"{role}.json"))
        print(role, tok.get_vocab_size(), tok.encode("The Varnel Tower stands in Oslem; 48213.").tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
